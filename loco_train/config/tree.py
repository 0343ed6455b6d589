"""YAML as a tree that knows where each value was written: file and line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loco_train.errors import ConfigError


class CoreLoader(yaml.SafeLoader):
    """YAML 1.2 scalars. PyYAML's 1.1 reads 1e-4 as text, 1:30 as 90, 010 as 8 and no as false."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (the base class has it so)


class CoreDumper(yaml.SafeDumper):
    """Writes what `CoreLoader` reads back as the same value."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


_SCALARS = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$", list("-+.0123456789")),
)  # fmt: skip
for _tag, _pattern, _first in _SCALARS:
    for _class in (CoreLoader, CoreDumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


@dataclass(frozen=True)
class Node:
    """A value and where it was written. value: a scalar, or a dict or list of nodes."""

    value: Any
    origin: str

    def plain(self) -> Any:
        """The value without origins."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def origins(self, prefix: str = "") -> dict[str, str]:
        """Origin of every node under its dotted name; list items by their number (data.train.0.path)."""
        found = {prefix: self.origin} if prefix else {}
        for key, node in _children(self.value):
            found.update(node.origins(f"{prefix}.{key}" if prefix else str(key)))
        return found


def _children(value: Any) -> list[tuple[Any, Node]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def read_tree(path: Path, *, shown: str | None = None) -> Node:
    """The YAML file at `path` as a tree. shown: how origins name the file.

    Raises:
        ConfigError: no such file, no text, no YAML, or a key that stands there twice; with file and line.
    """
    shown = shown or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {shown}", got=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown} is not UTF-8 text", got=f"byte {error.start} does not fit") from error
    return parse_tree(text, shown=shown)


def parse_tree(text: str, *, shown: str) -> Node:
    """YAML text as a tree; `read_tree` says what is raised."""
    loader = CoreLoader(text)
    try:
        root = loader.get_single_node()
        return Node(None, f"{shown}:1") if root is None else _convert(root, loader, shown)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{shown}:{mark.line + 1}" if mark else shown
        raise ConfigError(f"{place}: not valid YAML", got=error.problem or error.context) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown}: not valid YAML", got=str(error).splitlines()[0]) from error
    finally:
        loader.dispose()


def _convert(node: yaml.Node, loader: CoreLoader, shown: str) -> Node:
    origin = f"{shown}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        return Node(_mapping(node, loader, shown), origin)
    if isinstance(node, yaml.SequenceNode):
        return Node([_convert(item, loader, shown) for item in node.value], origin)
    return Node(loader.construct_object(node), origin)


def _mapping(node: yaml.MappingNode, loader: CoreLoader, shown: str) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in found:
            raise ConfigError(
                f"{shown}:{line}: the key {key} stands here twice",
                got=f"first at {found[key].origin}",
                allowed="each key once in a mapping",
                fix="remove one of them",
            )
        # The key's line: a mapping's or list's own node begins on the next one.
        found[key] = Node(_convert(value_node, loader, shown).value, f"{shown}:{line}")
    return found


def yaml_scalar(value: Any) -> str:
    """A scalar, or a list of scalars, as YAML on one line."""
    text = yaml.dump(value, Dumper=CoreDumper, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
