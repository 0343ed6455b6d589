"""Validation errors in words: the dotted name, what was got, what is allowed, the nearest name."""

from __future__ import annotations

import difflib
import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from loco_train.config.schema import RunConfig
from loco_train.config.yaml_file import Origins


def explain(error: ValidationError, *, origins: Origins) -> list[str]:
    """A paragraph for each error: `  dotted.name (file:line): problem`, then got and allowed."""
    return [_explain(detail, origins) for detail in error.errors(include_url=False)]


def _explain(detail: ErrorDetails, origins: Origins) -> str:
    location = [str(part) for part in detail["loc"]]
    dotted = ".".join(location) or "the run"
    where = origins.get(dotted)
    head = f"  {dotted}{f' ({where})' if where else ''}: "
    kind, got = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return head + _unknown_key(location)
    if kind == "missing":
        return head + "is missing; it has no default"
    if kind == "value_error":
        return head + str(detail["ctx"]["error"])
    return head + f"{_problem(detail)}\n    got: {got!r}"


def _unknown_key(location: list[str]) -> str:
    known = _keys_at(location[:-1])
    nearest = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
    hint = f"; did you mean {'.'.join([*location[:-1], nearest[0]])}?" if nearest else ""
    return f"unknown setting{hint}\n    allowed: {', '.join(known)}"


def _problem(detail: ErrorDetails) -> str:
    message = detail["msg"]
    context: dict[str, Any] = detail.get("ctx", {})
    if detail["type"] == "literal_error":
        return f"allowed is {context['expected']}"
    if detail["type"] == "string_pattern_mismatch":
        return f"allowed is text that matches {context['pattern']}"
    if detail["type"] in ("model_type", "model_attributes_type"):
        return "allowed is a mapping of settings, or the name of a part"
    return message.replace("Input should be", "allowed is").replace("Field required", "is missing")


def _keys_at(location: list[str]) -> list[str]:
    """Names of the settings inside `location`."""
    model: Any = RunConfig
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    return sorted(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """The settings class inside an annotation such as `RopeScaling | None` or `tuple[DataSource, ...]`."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation
    if typing.get_origin(annotation) is types.UnionType or typing.get_args(annotation):
        inner = [_model_in(argument) for argument in typing.get_args(annotation)]
        return next((m for m in inner if isinstance(m, type) and issubclass(m, BaseModel)), None)
    return annotation
