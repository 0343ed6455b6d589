"""YAML read strictly: duplicate keys refused, every value with the line that it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loco_train.errors import ConfigError

# Origin of each value by dotted key.
Origins = dict[str, str]


@dataclass(frozen=True)
class Sourced:
    """A mapping and where each of its values stands ("configs/runs/x.yaml:12"), by dotted key."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: Origins = field(default_factory=dict)


def read_yaml(path: Path, *, shown_as: str | None = None) -> Sourced:
    """The mapping in a YAML file.

    Raises:
        ConfigError: no such file, a syntax error, a key given twice, or no mapping; with file and line.
    """
    shown = shown_as or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {shown}", got=error.strerror, fix="check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown} is not UTF-8", got=f"byte {error.start}: {error.reason}") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{shown}{line}: not valid YAML", got=error.problem) from error
    if root is None:
        return Sourced()
    sourced = Sourced()
    values = _convert(root, shown, "", sourced.origins)
    if not isinstance(values, dict):
        raise ConfigError(f"{shown}: settings are a mapping of keys to values", got=type(values).__name__)
    return Sourced(values, sourced.origins)


def parse_scalar(text: str) -> Any:
    """The value of an override, read as YAML: 3, 1e-4, true, [a, b], text.

    Raises:
        ValueError: not valid YAML.
    """
    try:
        return _number_or(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _convert(node: yaml.Node, shown: str, dotted: str, origins: Origins) -> Any:
    origins[dotted] = f"{shown}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        return _convert_mapping(node, shown, dotted, origins)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, shown, f"{dotted}.{index}", origins) for index, item in enumerate(node.value)]
    return _number_or(yaml.SafeLoader("").construct_object(node, deep=True))


def _convert_mapping(node: yaml.MappingNode, shown: str, dotted: str, origins: Origins) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in values:
            # YAML's own readers take the last one without a word.
            raise ConfigError(f"{shown}:{line}: the key {key} is given twice", fix="remove one of them")
        values[key] = _convert(value_node, shown, f"{dotted}.{key}" if dotted else key, origins)
        origins[f"{dotted}.{key}" if dotted else key] = f"{shown}:{line}"
    return values


def _number_or(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 as text, because the dot is missing; nobody who writes it means text."""
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() and value[0] in "+-.0123456789" else value
        except ValueError:
            return value
    return value
