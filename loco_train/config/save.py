"""A resolved run as YAML, each value with its origin; loading it again gives the same run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loco_train.config.load import DEFAULT, ResolvedRun
from loco_train.config.yaml_file import Origins, write_value


def render(resolved: ResolvedRun) -> str:
    """The YAML text."""
    values = resolved.config.model_dump(mode="json")
    return "\n".join(_lines(values, resolved.origins, dotted="", indent="")) + "\n"


def save_resolved(resolved: ResolvedRun, path: Path) -> None:
    """Write `render(resolved)`; a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.write_text(render(resolved), encoding="utf-8")
    os.replace(temporary, path)


def _lines(values: Mapping[str, Any], origins: Origins, *, dotted: str, indent: str) -> Iterator[str]:
    for key, value in values.items():
        name = f"{dotted}.{key}" if dotted else key
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from _lines(value, origins, dotted=name, indent=f"{indent}  ")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield f"{indent}{key}:"
            yield from _items(value, origins, dotted=name, indent=f"{indent}  ")
        else:
            yield f"{indent}{key}: {write_value(value)}  # {_origin(name, origins)}"


def _items(items: list[Mapping[str, Any]], origins: Origins, *, dotted: str, indent: str) -> Iterator[str]:
    for index, item in enumerate(items):
        first, *rest = _lines(item, origins, dotted=f"{dotted}.{index}", indent=f"{indent}  ")
        yield f"{indent}- {first.lstrip()}"
        yield from rest


def _origin(name: str, origins: Origins) -> str:
    inside = (origin for dotted, origin in origins.items() if dotted.startswith(f"{name}."))
    return origins.get(name) or next(inside, DEFAULT)
