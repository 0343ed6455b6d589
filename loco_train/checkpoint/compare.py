"""Does a checkpoint belong to this run? Each setting that differs is named, with both values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loco_train.checkpoint.manifest import Header
from loco_train.errors import CheckpointError

# Settings that change where or how fast a run goes, not what it computes; these may differ from the checkpoint's.
FREE_SETTINGS = (
    "run_dir",
    "device",
    "network",
    "recompute",
    "islands.index",
    "islands.rendezvous",
    "method.outer_state",
    "optimizer.implementation",
    "evaluation",
    "checkpoint",
    "telemetry",
)
_ABSENT = "(absent)"


def flatten(document: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, prefix=f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted key, saved value, current value) of each setting that differs and is not free, by key."""
    # Through JSON, as the saved one went: a tuple and the list that it became are the same setting.
    before, now = flatten(saved), flatten(json.loads(json.dumps(current)))
    keys = [key for key in sorted({*before, *now}) if not _is_free(key)]
    pairs = ((key, before.get(key, _ABSENT), now.get(key, _ABSENT)) for key in keys)
    return [(key, old, new) for key, old, new in pairs if old != new]


def require_same_run(
    header: Header, *, run_id: str | None, island: int, config: Mapping[str, Any], where: object
) -> None:
    """Raise CheckpointError unless the checkpoint in `where` is of this run, island and configuration.

    Args:
        run_id: of this run; None where the run has not got one before it resumes.
        config: this run's RunConfig as JSON.
    """
    for name, saved, current in (("run", header.run_id, run_id), ("island", header.island, island)):
        if current is not None and saved != current:
            raise CheckpointError(
                f"{where} belongs to another {name}",
                got=saved,
                allowed=current,
                fix="give this run a run_dir of its own, or name the checkpoint of this run",
            )
    if found := differences(header.config, config):
        lines = "".join(f"\n    {key}: {old!r} in the checkpoint, {new!r} now" for key, old, new in found)
        raise CheckpointError(
            f"{where} was made with other settings:{lines}",
            fix="set these back to the checkpoint's values (its config.yaml), or start a run with a run_dir of its own",
        )


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE_SETTINGS)
