"""YAML read strictly: duplicate keys refused, every value with the line that it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from loco_train.errors import ConfigError

# Origin of each value by dotted key.
Origins = dict[str, str]


class CoreLoader(yaml.SafeLoader):
    """YAML 1.2 scalars: PyYAML's own 1.1 reads 1e-4 as text, 1:30 as 90, 010 as 8 and no as false."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (declared so in the base class)


class CoreDumper(yaml.SafeDumper):
    """Writes what `CoreLoader` reads as the same value."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (declared so in the base class)


_NUMBER_START = list("-+.0123456789")
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", _NUMBER_START),
    "float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", _NUMBER_START),
}
for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (CoreLoader, CoreDumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


_CORRECT_IT = "correct it there; `loco config show` prints settings as they should be written"
# Far above any settings: a few lines of aliases of aliases would otherwise fill the memory.
_MOST_VALUES = 100_000


@dataclass(frozen=True)
class Sourced:
    """A value and where each part of it stands ("configs/runs/x.yaml:12"), by dotted key; the whole under ""."""

    values: Any
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
        raise ConfigError(
            f"{shown} is not UTF-8",
            got=f"byte {error.start}: {error.reason}",
            fix="save it as UTF-8, or name another file",
        ) from error
    sourced = parse_yaml(text, shown_as=shown)
    if not isinstance(sourced.values, dict):
        raise ConfigError(
            f"{shown}: settings are a mapping of keys to values",
            got="nothing" if sourced.values is None else repr(sourced.values)[:100],
            allowed="lines of `key: value`",
            fix="write settings into it, or name another file; `loco config list` names the shipped ones",
        )
    return sourced


def parse_yaml(text: str, *, shown_as: str) -> Sourced:
    """The value that YAML text says.

    Raises:
        ConfigError: not valid YAML, or a key given twice.
    """
    origins: Origins = {}
    loader = None
    try:
        loader = CoreLoader(text)
        root = loader.get_single_node()
        return Sourced(None if root is None else _convert(root, loader, shown_as, "", origins), origins)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{shown_as}{line}: not valid YAML", got=error.problem, fix=_CORRECT_IT) from error
    except RecursionError as error:
        raise ConfigError(
            f"{shown_as}: not valid YAML", got="values nested in themselves, or too deep", fix=_CORRECT_IT
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{shown_as}: not valid YAML", got=str(error).splitlines()[0], fix=_CORRECT_IT) from error
    finally:
        if loader:
            loader.dispose()


def write_value(value: Any) -> str:
    """A value on one line, as YAML that `parse_yaml` reads back."""
    text = yaml.dump(value, Dumper=CoreDumper, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _convert(node: yaml.Node, loader: CoreLoader, shown: str, dotted: str, origins: Origins) -> Any:
    origins[dotted] = f"{shown}:{node.start_mark.line + 1}"
    if len(origins) > _MOST_VALUES:
        raise ConfigError(
            f"{shown}: too many values",
            got=f"over {_MOST_VALUES:,}, aliases counted",
            fix="write settings without them",
        )
    if isinstance(node, yaml.MappingNode):
        return _convert_mapping(node, loader, shown, dotted, origins)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, loader, shown, _join(dotted, str(i)), origins) for i, item in enumerate(node.value)]
    return loader.construct_object(node)


def _convert_mapping(
    node: yaml.MappingNode, loader: CoreLoader, shown: str, dotted: str, origins: Origins
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in values:
            # YAML's own readers take the last one without a word.
            raise ConfigError(
                f"{shown}:{line}: the key {key} is given twice",
                got=f"first at {origins[_join(dotted, key)]}",
                fix="remove one of them",
            )
        values[key] = _convert(value_node, loader, shown, _join(dotted, key), origins)
        # The key's line: a section itself begins on the next one.
        origins[_join(dotted, key)] = f"{shown}:{line}"
    return values


def _join(dotted: str, key: str) -> str:
    return f"{dotted}.{key}" if dotted else key
