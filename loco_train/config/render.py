"""Resolved settings as YAML, each with its origin as a comment; loadable again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loco_train.config.load import ResolvedRun
from loco_train.config.tree import yaml_scalar

_COMMENT_COLUMN = 48


def render_resolved(resolved: ResolvedRun) -> str:
    """YAML text of all settings with origins."""
    config = resolved.config
    lines = [
        f"# All settings of the run {config.name}, each with its origin. Relative paths: to the working directory.",
        *_mapping(config.model_dump(mode="json"), resolved, name="", indent=""),
    ]
    return "\n".join(lines) + "\n"


def save_resolved(resolved: ResolvedRun, path: Path) -> None:
    """Write `render_resolved` to `path`, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(render_resolved(resolved), encoding="utf-8")
    os.replace(temporary, path)


def _mapping(values: Mapping[str, Any], resolved: ResolvedRun, *, name: str, indent: str) -> Iterator[str]:
    for key, value in values.items():
        dotted = f"{name}.{key}" if name else key
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _mapping(value, resolved, name=dotted, indent=indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{indent}{key}:"
            yield from _items(value, resolved, name=dotted, indent=indent)
        else:
            yield _line(f"{indent}{key}: {yaml_scalar(value)}", _origin(resolved, dotted, value))


def _items(items: list[Mapping[str, Any]], resolved: ResolvedRun, *, name: str, indent: str) -> Iterator[str]:
    for index, item in enumerate(items):
        first, *rest = _mapping(item, resolved, name=f"{name}.{index}", indent=indent + "    ")
        yield f"{indent}  - {first.lstrip()}"
        yield from rest


def _origin(resolved: ResolvedRun, dotted: str, value: Any) -> str:
    """A list of scalars stands on one line: it has its first item's origin."""
    return resolved.origin(f"{dotted}.0" if isinstance(value, list) and value else dotted)


def _line(text: str, origin: str) -> str:
    return f"{text:<{_COMMENT_COLUMN}}  # {origin}"
