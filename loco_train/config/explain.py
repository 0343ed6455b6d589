"""What is wrong with settings, in the user's words: dotted name, place, got, allowed, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from loco_train.config.schema import RunConfig
from loco_train.errors import ConfigError

# Setting of a run -> folder under configs/ that holds its named parts.
PARTS = {"model": "models", "method": "methods", "network": "networks", "data": "data"}


@dataclass(frozen=True)
class Problem:
    """One setting that cannot be used. path: dotted name, empty for the whole run; origin: where it was written."""

    path: str
    what: str
    origin: str | None = None
    got: object = None
    allowed: object = None
    fix: str | None = None

    @staticmethod
    def of(error: ConfigError, *, path: str, origin: str | None) -> Problem:
        return Problem(path, error.problem, origin, error.got, error.allowed, error.fix)

    def error(self) -> ConfigError:
        place = f"{self.path} ({self.origin})" if self.path and self.origin else self.path
        return ConfigError(
            f"{place}: {self.what}" if place else self.what,
            got=self.got,
            allowed=self.allowed,
            fix=self.fix or self._way_out(),
        )

    def _way_out(self) -> str:
        if self.path and not _is_section(self.path):
            return f"change it in the file, or on the command line: {self.path}=..."
        return "change one of these settings; `loco config show` prints every setting with its origin"


def raise_problems(problems: Sequence[Problem], *, source: str) -> None:
    """One ConfigError that tells all problems; nothing where there are none."""
    if len(problems) == 1:
        raise problems[0].error()
    if problems:
        paragraphs = [problem.error().message().replace("\n", "\n  ") for problem in problems]
        raise ConfigError("\n  ".join([f"{source}: {len(problems)} settings are wrong", *paragraphs]))


def explain(error: ValidationError, *, origins: Mapping[str, str]) -> list[Problem]:
    """What the schema found, a problem each, in the order of the settings."""
    details = _of_one_form(error.errors(include_url=False))
    paths = [_path(detail) for detail in details]
    # A list with a wrong item also counts as too short: the item's own problem says it.
    empty_for = {p for p, d in zip(paths, details, strict=True) if d["type"] == "too_short" and d["input"]}
    return [_problem(d, p, origins) for p, d in zip(paths, details, strict=True) if p not in empty_for]


# What a value is told that has another form, as a list where a number was meant.
_OTHER_FORM = {"int_type", "int_parsing", "int_from_float", "tuple_type", "literal_error", "string_type"}


def _of_one_form(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """For a setting with several forms, a number or a list, pydantic tells what is wrong with each form, under a path
    that nobody can write, `inner_steps.constrained-int`: only that of the form which was meant is kept."""
    grouped: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for detail in details:
        setting, inside = _split_form(detail["loc"])
        grouped.setdefault(setting, []).append({**detail, "loc": setting + inside})
    kept: list[ErrorDetails] = []
    for setting, each in grouped.items():
        meant = [detail for detail in each if detail["type"] not in _OTHER_FORM or detail["loc"] != setting]
        forms = ", or ".join(dict.fromkeys(map(_allowed, each)))
        kept += meant or [{**each[0], "type": "form", "msg": forms}]
    return kept


def _split_form(location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], tuple[int | str, ...]]:
    """The setting's own name, and what follows the name of a form; all and nothing where there is none."""
    for index, part in enumerate(location):
        if index and isinstance(part, str) and not isinstance(location[index - 1], int):
            parent = _model_at([str(name) for name in location[:index]])
            if parent is None:
                return location[:index], location[index + 1 :]
    return location, ()


def _path(detail: ErrorDetails) -> str:
    return ".".join(map(str, detail["loc"]))


def _problem(detail: ErrorDetails, path: str, origins: Mapping[str, str]) -> Problem:
    kind, origin = detail["type"], _nearest_origin(path, origins)
    if kind == "extra_forbidden":
        return _unknown_key(detail["loc"], origin, detail["input"])
    if kind == "missing":
        return Problem(path, "is not set, and has no default", allowed=_meaning(detail["loc"]), fix=f"set {path}")
    if kind == "value_error":
        return _own_check(path, origin, str(detail["ctx"]["error"]))
    return Problem(path, "cannot have this value", origin, got=_shorten(detail["input"]), allowed=_allowed(detail))


def _own_check(path: str, origin: str | None, message: str) -> Problem:
    """A message of the schema's own checks, or of a quantity."""
    if message.startswith("not a quantity: "):
        got, _, units = message.removeprefix("not a quantity: ").partition("; write ")
        return Problem(path, "cannot have this value", origin, got=got, allowed=units)
    # A combined check names its settings itself; the line of the section around them would mislead.
    return Problem(path, message, None if _is_section(path) else origin)


def _unknown_key(location: Sequence[int | str], origin: str | None, got: object) -> Problem:
    *parents, key = map(str, location)
    section, names = ".".join(parents), _names_in(parents)
    nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    elsewhere = [name for name in dotted_names() if name.rpartition(".")[2] == key]
    suggestions = [".".join([*parents, name]) for name in nearest] or elsewhere
    return Problem(
        ".".join([*parents, key]),
        "there is no such setting",
        origin,
        got=_shorten(got),
        allowed=f"{'in ' + section if section else 'at the top'}: {', '.join(names)}",
        fix=f"did you mean {' or '.join(suggestions)}?" if suggestions else None,
    )


_ALLOWED = {
    "too_short": "at least {min_length} of them",
    "string_pattern_mismatch": "letters, digits, dot, _ and -, beginning with a letter or digit",
    "tuple_type": "a list",
}
_WORDS = {"integer": "a whole number", "string": "text", "boolean": "true or false", "number": "a number"}


def _allowed(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind in _ALLOWED:
        return _ALLOWED[kind].format(**detail.get("ctx", {}))
    if kind in ("model_type", "model_attributes_type"):
        return _part(_path(detail))
    text = detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    text = re.sub(r", (unable to|got a number).*", "", text)
    return _WORDS.get(text, text)


def _part(path: str) -> str:
    named = f"the name of a file in configs/{PARTS[path]}, or " if path in PARTS else ""
    return f"{named}a mapping of settings"


def _meaning(location: Sequence[int | str]) -> str | None:
    """What a setting is, for one that is missing."""
    if _is_section(_dotted(location)):
        return _part(_dotted(location))
    *parents, name = [str(part) for part in location]
    model = _model_at(parents)
    return model.model_fields[name].description if model else None


def _dotted(location: Sequence[int | str]) -> str:
    return ".".join(map(str, location))


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _nearest_origin(path: str, origins: Mapping[str, str]) -> str | None:
    """Where `path`, or the section around it, was written."""
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins.get(path)


def dotted_names() -> list[str]:
    """Every setting of a run by its dotted name; items of lists under 0."""
    return list(_names_below(RunConfig, ""))


def _names_below(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        inner = _model_in(field.annotation)
        if inner:
            item = "0." if "tuple" in str(field.annotation) else ""
            yield from _names_below(inner, f"{prefix}{name}.{item}")


def _names_in(location: Sequence[str]) -> list[str]:
    model = _model_at(location)
    return list(model.model_fields) if model else []


def _is_section(path: str) -> bool:
    return not path or _model_at(path.split(".")) is not None


def _model_at(location: Sequence[str]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = RunConfig
    for name in location:
        if name.isdecimal() or model is None:
            continue
        model = _model_in(model.model_fields[name].annotation) if name in model.model_fields else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The settings class inside `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
