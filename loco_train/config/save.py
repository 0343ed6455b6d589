"""A resolved run as YAML, each value with its origin; loading it again gives the same run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from loco_train.config.load import DEFAULT, ResolvedRun
from loco_train.config.yaml_file import Origins


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
        else:
            yield f"{indent}{key}: {_flow(value)}  # {_origin(name, origins)}"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _origin(name: str, origins: Origins) -> str:
    inside = (origin for dotted, origin in origins.items() if dotted.startswith(f"{name}."))
    return origins.get(name) or next(inside, DEFAULT)
