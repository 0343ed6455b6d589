"""Values as strict JSON."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` (dicts, lists, dataclasses, paths, numbers) as JSON text.

    NaN and infinity become null: json.dumps writes them as bare words, which jq, JavaScript and pyarrow refuse.
    """
    return to_json(value, indent=indent, inf_nan_mode="null").decode()
