"""What is wrong with settings, in the user's words: dotted name, place, got, allowed, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from loco_train.config.schema import RunConfig
from loco_train.errors import ConfigError


# Sections of a run that may be the name of a shipped file, and the folder of it.
PART_FOLDERS = {"model": "models", "method": "methods", "network": "networks", "data": "data"}


@dataclass(frozen=True)
class Problem:
    """One setting that cannot be used. path: dotted name; origin: where it was written."""

    path: str
    what: str
    origin: str | None = None
    got: str | None = None
    allowed: str | None = None
    fix: str | None = None

    def title(self) -> str:
        subject = f"{self.path}: {self.what}" if self.path else self.what
        return f"{subject} ({self.origin})" if self.origin else subject

    def error(self) -> ConfigError:
        return ConfigError(self.title(), got=self.got, allowed=self.allowed, fix=self.fix)


def raise_problems(problems: list[Problem], *, source: str) -> None:
    """One ConfigError that tells all problems; nothing where there are none."""
    if len(problems) == 1:
        raise problems[0].error()
    if problems:
        told = [problem.error().message().replace("\n", "\n  ") for problem in problems]
        raise ConfigError(f"{source}: {len(problems)} settings cannot be used\n  " + "\n  ".join(told))


def schema_problems(error: ValidationError, origins: dict[str, str]) -> list[Problem]:
    """pydantic's findings as problems."""
    return [_problem(details, origins) for details in error.errors(include_url=False)]


def _problem(details: ErrorDetails, origins: dict[str, str]) -> Problem:
    path = ".".join(map(str, details["loc"]))
    kind = details["type"]
    origin = nearest_origin(path, origins)
    if kind == "extra_forbidden":
        return _unknown_key(details["loc"], origin, details["input"])
    if kind == "missing":
        field = _field(details["loc"])
        wanted = PART_FOLDERS.get(path)
        allowed = (field.description if field else None) or _allowed_part(wanted)
        return Problem(path, "is not set, and has no default", allowed=allowed, fix=f"set {path}")
    if kind == "value_error":
        return _own_check(path, origin, str(details["ctx"]["error"]))
    got = _shorten(details["input"])
    return Problem(path, "cannot have this value", origin, got=got, allowed=_allowed(details))


def _own_check(path: str, origin: str | None, message: str) -> Problem:
    """A message of the schema's own checks: `what is wrong[: what to do]`, or a quantity's."""
    if message.startswith("not a quantity: "):
        got, _, allowed = message.removeprefix("not a quantity: ").partition("; ")
        return Problem(path, "is no quantity", origin, got=got, allowed=allowed.removeprefix("write "))
    # A combined check belongs to a whole section: its message names the settings.
    return Problem(path, message, origin if origin and not _is_section(path) else None)


def _unknown_key(loc: tuple[int | str, ...], origin: str | None, got: object) -> Problem:
    *parents, key = loc
    names = _section_names(parents)
    section = ".".join(map(str, parents))
    nearest = difflib.get_close_matches(str(key), names, n=1, cutoff=0.6)
    if nearest:
        suggestion = ".".join(filter(None, (section, nearest[0])))
    else:
        suggestion = next((name for name in dotted_names() if name.rsplit(".")[-1] == key), "")
    return Problem(
        ".".join(map(str, loc)),
        "there is no such setting",
        origin,
        got=_shorten(got),
        allowed=f"{'in ' + section if section else 'at the top'}: {', '.join(names)}",
        fix=f"did you mean {suggestion}?" if suggestion else None,
    )


_PHRASES = {
    "too_short": "at least {min_length} of them",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-', beginning with a letter or digit",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}


def _allowed(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in _PHRASES:
        return _PHRASES[kind].format(**context)
    if kind in ("model_type", "model_attributes_type"):
        return _allowed_part(PART_FOLDERS.get(str(details["loc"][-1])))
    text = details["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    text = re.sub(r", (unable to parse|got a number).*", "", text)
    return {"integer": "a whole number", "string": "text", "boolean": "true or false"}.get(text, text)


def _allowed_part(folder: str | None) -> str:
    return f"the name of a file in configs/{folder}, or a mapping of settings" if folder else "a mapping of settings"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def nearest_origin(path: str, origins: dict[str, str]) -> str | None:
    """Where `path`, or the section around it, was written."""
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins.get(path)


def dotted_names() -> list[str]:
    """Every setting by its dotted name; items of lists under 0."""
    return list(_dotted(RunConfig, ""))


def _dotted(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = _inner_model(field.annotation)
        yield f"{prefix}{name}"
        if inner:
            yield from _dotted(inner, f"{prefix}{name}." + ("0." if _is_list(field.annotation) else ""))


def _is_list(annotation: Any) -> bool:
    return "tuple" in str(annotation)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The settings class inside `X`, `X | None`, `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_inner_model, get_args(annotation))), None)


def _field(loc: tuple[int | str, ...] | list[int | str]) -> FieldInfo | None:
    model: type[BaseModel] | None = RunConfig
    field = None
    for key in loc:
        if isinstance(key, int):
            continue
        field = model.model_fields.get(key) if model else None
        model = _inner_model(field.annotation) if field else None
    return field


def _section_names(parents: list[int | str]) -> list[str]:
    field = _field(parents)
    model = _inner_model(field.annotation) if field else (None if parents else RunConfig)
    return list(model.model_fields) if model else []


def _is_section(path: str) -> bool:
    field = _field(path.split(".")) if path else None
    return not path or (field is not None and _inner_model(field.annotation) is not None)
