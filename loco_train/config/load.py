"""A run's settings from its YAML file, the named parts under configs/, and overrides.

A run names one of each: `model: llama-1b` is configs/models/llama-1b.yaml; an inline mapping works as well, and
`{use: llama-1b, layers: 8}` is the named part with changes. Relative paths inside settings are relative to the
current working directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loco_train.assets import shared_folder
from loco_train.config.explain import explain
from loco_train.config.schema import RunConfig
from loco_train.config.yaml_file import Origins, Sourced, parse_scalar, read_yaml
from loco_train.errors import ConfigError

# Setting of a run -> folder under configs/ that holds its named parts.
PARTS = {"model": "models", "method": "methods", "network": "networks", "data": "data"}
DEFAULT = "default"
OVERRIDE = "override"


@dataclass(frozen=True)
class ResolvedRun:
    """config: whole and checked. origins: where each value comes from, by dotted key; absent: the default."""

    config: RunConfig
    origins: Origins


def load_run(run: str | Path, overrides: Sequence[str] = ()) -> ResolvedRun:
    """Read, compose and check a run.

    Args:
        run: a YAML file, or the name of one under configs/runs.
        overrides: `a.b=value` (value read as YAML), or `model=name` for another named part; applied last, in order.

    Raises:
        ConfigError: naming every setting that is wrong, with what was got, what is allowed and what to do.
    """
    path = _find(run, folder="runs", what="run")
    sourced = read_yaml(path, shown_as=_shown(path))
    assignments = [_split(text) for text in overrides]
    for key, text in assignments:
        if key in PARTS:
            sourced.values[key] = _value(key, text)
            _forget(sourced.origins, key)
            sourced.origins[key] = OVERRIDE
    for key, folder in PARTS.items():
        _compose(sourced, key=key, folder=folder)
    for key, text in assignments:
        if key not in PARTS:
            _assign(sourced, key, _value(key, text))
    return ResolvedRun(_check(sourced), {key: origin for key, origin in sourced.origins.items() if key})


def available(folder: str) -> list[str]:
    """Names of the parts in a folder of configs/."""
    return sorted(path.stem for path in (shared_folder("configs") / folder).glob("*.yaml"))


def _find(name: str | Path, *, folder: str, what: str) -> Path:
    given = Path(name)
    if given.suffix in (".yaml", ".yml"):
        return given
    found = shared_folder("configs") / folder / f"{name}.yaml"
    if not found.is_file():
        raise ConfigError(
            f"there is no {what} named {str(name)!r}",
            allowed=", ".join(available(folder)) or f"nothing in configs/{folder}",
            fix=f"name one of these, or a file ending in .yaml; they are files in configs/{folder}",
        )
    return found


def _shown(path: Path) -> str:
    configs = shared_folder("configs")
    return f"configs/{path.relative_to(configs)}" if path.is_relative_to(configs) else str(path)


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError("an override is no assignment", got=repr(text), allowed="a.b=value, as in optimizer.lr=3e-4")
    return key.strip(), value


def _value(key: str, text: str) -> Any:
    try:
        return parse_scalar(text)
    except ValueError as error:
        raise ConfigError(f"{key}: the override is not valid YAML", got=repr(text)) from error


def _compose(sourced: Sourced, *, key: str, folder: str) -> None:
    """Replace the name of a part by the part, with the run's own changes on top."""
    given = sourced.values.get(key)
    changes: dict[str, Any] = {}
    if isinstance(given, dict) and "use" in given:
        changes = {name: value for name, value in given.items() if name != "use"}
        given = given["use"]
    if not isinstance(given, str):
        return
    path = _find(given, folder=folder, what=key)
    part = read_yaml(path, shown_as=_shown(path))
    sourced.values[key] = _merged(part.values, changes)
    own = dict(sourced.origins)
    _forget(sourced.origins, key)
    sourced.origins.update({f"{key}.{dotted}": origin for dotted, origin in part.origins.items() if dotted})
    kept = (dotted for dotted in own if changes and dotted.startswith(f"{key}.") and dotted != f"{key}.use")
    sourced.origins.update({dotted: own[dotted] for dotted in kept})


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`values` with `changes` on top, mappings within mappings too."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _forget(origins: Origins, key: str) -> None:
    for dotted in [dotted for dotted in origins if dotted == key or dotted.startswith(f"{key}.")]:
        del origins[dotted]


def _assign(sourced: Sourced, dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    inside: Any = sourced.values
    for depth, name in enumerate(parents):
        inside = _enter(inside, name, path=".".join(parents[: depth + 1]))
    if isinstance(inside, list):
        inside[_index(inside, last, path=dotted)] = value
    else:
        inside[last] = value
    _forget(sourced.origins, dotted)
    sourced.origins[dotted] = OVERRIDE


def _enter(inside: Any, name: str, *, path: str) -> Any:
    if isinstance(inside, list):
        return inside[_index(inside, name, path=path)]
    entered = inside.setdefault(name, {})
    if entered is None:
        entered = inside[name] = {}
    if not isinstance(entered, (dict, list)):
        raise ConfigError(f"{path} is a value and has no settings inside", got=repr(entered))
    return entered


def _index(values: list[Any], name: str, *, path: str) -> int:
    if not name.isdecimal() or int(name) >= len(values):
        raise ConfigError(f"{path}: no such item", got=repr(name), allowed=f"0 to {len(values) - 1}")
    return int(name)


def _check(sourced: Sourced) -> RunConfig:
    try:
        return RunConfig.model_validate(sourced.values)
    except ValidationError as error:
        lines = explain(error, origins=sourced.origins)
        count = "a setting is wrong" if len(lines) == 1 else f"{len(lines)} settings are wrong"
        raise ConfigError("\n".join([f"{count}:", *lines])) from None
