"""A run's tree out of its named parts and overrides."""

from __future__ import annotations

import difflib
from pathlib import Path

from loco_train.assets import shared_folder
from loco_train.config.problems import PART_FOLDERS, Problem
from loco_train.config.tree import Node, parse_tree, read_tree
from loco_train.errors import ConfigError

OVERRIDE = "override"


def shipped_names(folder: str) -> list[str]:
    """Names of the shipped files in configs/`folder`."""
    return sorted(path.stem for path in (shared_folder("configs") / folder).glob("*.yaml"))


def find_config(name: str, *, folder: str) -> tuple[Path, str]:
    """The file that `name` means, and how to show it: a path that ends in .yaml, or a shipped name.

    Raises:
        ConfigError: there is neither; says what is nearest.
    """
    if name.endswith((".yaml", ".yml")):
        if Path(name).is_file():
            return Path(name), name
        raise ConfigError(f"there is no file {name}", got=name, allowed=f"a YAML file, or one of {_listed(folder)}")
    path = shared_folder("configs") / folder / f"{name}.yaml"
    if path.is_file():
        return path, f"configs/{folder}/{name}.yaml"
    nearest = difflib.get_close_matches(name, shipped_names(folder), n=1)
    raise ConfigError(
        f"there is no configs/{folder}/{name}.yaml",
        got=name,
        allowed=f"a path that ends in .yaml, or one of {_listed(folder)}",
        fix=f"did you mean {nearest[0]}?" if nearest else None,
    )


def _listed(folder: str) -> str:
    return ", ".join(shipped_names(folder))


def resolve_parts(root: Node, problems: list[Problem]) -> Node:
    """`root` with the names of parts replaced by what their files say; what cannot be is told in `problems`."""
    found = dict(root.value)
    for key in PART_FOLDERS:
        if key in found:
            found[key] = _resolve(key, found[key], problems)
    return Node(found, root.origin)


def _resolve(key: str, node: Node, problems: list[Problem]) -> Node:
    """A part by name, by {use: name, key: value …}, or as it stands."""
    name, changes = node, Node({}, node.origin)
    if isinstance(node.value, dict):
        if "use" not in node.value:
            return node
        name = node.value["use"]
        changes = Node({k: v for k, v in node.value.items() if k != "use"}, node.origin)
    if not isinstance(name.value, str):
        return node
    try:
        path, shown = find_config(name.value, folder=PART_FOLDERS[key])
        part = read_tree(path, shown=shown)
        _require_mapping(part, shown)
    except ConfigError as error:
        problems.append(_from_error(key, name.origin, error))
        return node
    return _merge(part, changes)


def _from_error(path: str, origin: str, error: ConfigError) -> Problem:
    got, allowed = (None if v is None else str(v) for v in (error.got, error.allowed))
    return Problem(path, error.problem, origin, got=got, allowed=allowed, fix=error.fix)


def _require_mapping(node: Node, shown: str) -> None:
    if not isinstance(node.value, dict):
        raise ConfigError(f"{shown} holds no settings", got=repr(node.plain()), allowed="lines of `key: value`")


def _merge(base: Node, changes: Node) -> Node:
    if not (isinstance(base.value, dict) and isinstance(changes.value, dict)):
        return changes
    merged = dict(base.value)
    for key, node in changes.value.items():
        merged[key] = _merge(merged[key], node) if key in merged else node
    return Node(merged, base.origin)


def apply_override(root: Node, text: str, problems: list[Problem]) -> Node:
    """`root` with `a.b=value` set; the value is YAML. `model=name` exchanges a whole part."""
    path, equals, value = text.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        problems.append(Problem("", "an override is no setting", got=repr(text), allowed="a.b=value, as in rounds=4"))
        return root
    try:
        node = _as_override(parse_tree(value, shown=f"override {path}"))
    except ConfigError as error:
        problems.append(_from_error(path, OVERRIDE, error))
        return root
    if len(keys) == 1 and path in PART_FOLDERS:
        node = _resolve(path, node, problems)
    try:
        return _with(root, keys, node, at="")
    except ConfigError as error:
        problems.append(_from_error(path, OVERRIDE, error))
        return root


def _as_override(node: Node) -> Node:
    """The same tree with `override` as the origin of everything in it."""
    if isinstance(node.value, dict):
        return Node({key: _as_override(child) for key, child in node.value.items()}, OVERRIDE)
    if isinstance(node.value, list):
        return Node([_as_override(child) for child in node.value], OVERRIDE)
    return Node(node.value, OVERRIDE)


def _with(node: Node, keys: list[str], leaf: Node, *, at: str) -> Node:
    if not keys:
        return leaf
    key, rest = keys[0], keys[1:]
    here = f"{at}.{key}" if at else key
    if isinstance(node.value, dict) or node.value is None:
        children = dict(node.value or {})
        children[key] = _with(children.get(key, Node(None, OVERRIDE)), rest, leaf, at=here)
        return Node(children, node.origin)
    if isinstance(node.value, list):
        items = list(node.value)
        if not key.isdecimal() or int(key) >= len(items):
            raise ConfigError(f"{at} is a list", got=key, allowed=f"a number from 0 to {len(items) - 1}")
        items[int(key)] = _with(items[int(key)], rest, leaf, at=here)
        return Node(items, node.origin)
    raise ConfigError(f"{at} is one value and has no settings inside", got=repr(node.value), allowed=f"{at}=value")
