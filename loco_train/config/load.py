"""A run's settings from its YAML file, the named parts under configs/, and overrides.

A run names one of each: `model: llama-1b` is configs/models/llama-1b.yaml; an inline mapping works as well, and
`{use: llama-1b, layers: 8}` is the named part with changes. Relative paths inside settings are relative to the
current working directory.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loco_train.assets import shared_folder
from loco_train.config.explain import PARTS, Problem, explain, raise_problems
from loco_train.config.schema import RunConfig
from loco_train.config.yaml_file import Origins, Sourced, parse_yaml, read_yaml
from loco_train.errors import ConfigError

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
    problems: list[Problem] = []
    assignments = _assignments(overrides, problems)
    for key, value in assignments:
        if key in PARTS:
            _assign(sourced, key, value)
    for key, folder in PARTS.items():
        with _collected(problems, path=key, origin=sourced.origins.get(key)):
            _compose(sourced, key=key, folder=folder)
    for key, value in assignments:
        # Inside a part that could not be read there is nothing to set; that it could not be read is told.
        if key not in PARTS and key.partition(".")[0] not in _unread(problems):
            with _collected(problems, path=key, origin=OVERRIDE):
                _assign(sourced, key, value)
    config = _check(sourced, problems)
    raise_problems(problems, source=_shown(path))
    assert config is not None  # otherwise there was a problem
    return ResolvedRun(config, {key: origin for key, origin in sourced.origins.items() if key})


@contextlib.contextmanager
def _collected(problems: list[Problem], *, path: str, origin: str | None) -> Iterator[None]:
    """An error inside becomes one of `problems`, so that the user hears of all of them at once."""
    try:
        yield
    except ConfigError as error:
        problems.append(Problem.of(error, path=path, origin=origin))


def available(folder: str) -> list[str]:
    """Names of the parts in a folder of configs/."""
    return sorted(path.stem for path in (shared_folder("configs") / folder).glob("*.yaml"))


def _find(name: str | Path, *, folder: str, what: str) -> Path:
    given = Path(name)
    if given.suffix in (".yaml", ".yml"):
        return given
    found = shared_folder("configs") / folder / f"{name}.yaml"
    if not found.is_file():
        nearest = difflib.get_close_matches(str(name), available(folder), n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise ConfigError(
            f"there is no {what} named {str(name)!r}",
            allowed=", ".join(available(folder)) or f"nothing in configs/{folder}",
            fix=f"{hint}name one of these files in configs/{folder}, or a file of your own ending in .yaml",
        )
    return found


def _shown(path: Path) -> str:
    configs = shared_folder("configs")
    return f"configs/{path.relative_to(configs)}" if path.is_relative_to(configs) else str(path)


def _assignments(overrides: Sequence[str], problems: list[Problem]) -> list[tuple[str, Any]]:
    """(dotted key, value) of each override."""
    found = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            allowed = "a.b=value, as in optimizer.lr=3e-4"
            problems.append(Problem("", "an override is no assignment", got=repr(text), allowed=allowed))
            continue
        with _collected(problems, path=key, origin=OVERRIDE):
            found.append((key, parse_yaml(value, shown_as="its value").values))
    return found


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


def _check(sourced: Sourced, problems: list[Problem]) -> RunConfig | None:
    try:
        return RunConfig.model_validate(sourced.values)
    except ValidationError as error:
        found = explain(error, origins=sourced.origins)
        problems += [problem for problem in found if problem.path.partition(".")[0] not in _unread(problems)]
        return None


def _unread(problems: Sequence[Problem]) -> set[str]:
    """Parts that could not be read: one problem each, whatever else follows from it."""
    return {problem.path for problem in problems if problem.path in PARTS}
