"""Are two configurations the same run? Each setting that differs is named, with both values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from loco_train.config.schema import RunConfig

# Settings that change where or how fast a run goes, not what it computes; these may change from start to start.
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
# Of these, what islands do together: one that does not would let the others wait.
_TOGETHER = ("evaluation.every_rounds", "health")
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


def defining_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make a run what it is, by dotted key, as JSON gives them back."""
    # Through JSON: a tuple and the list that it becomes in a file are the same setting.
    document = json.loads(json.dumps(config))
    free = FREE_SETTINGS if _measuring_decides(document) else (*FREE_SETTINGS, "health")
    return {key: value for key, value in sorted(flatten(document).items()) if not _is_among(key, free)}


def _measuring_decides(config: Mapping[str, Any]) -> bool:
    """Whether training goes otherwise for what is measured of the islands' health."""
    flat = flatten(config)
    has_policy = any(key.startswith("health.policy.") for key in flat)
    return has_policy or flat.get("method.mix2.blocks") == "measured"


def shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal on all islands of a run: the defining settings, but not where an island keeps its data, and
    what they do together.

    The data's content is compared by its hashes; sites that are far apart rarely share a file system.
    """
    without_paths = json.loads(json.dumps(config))
    without_paths["data"].pop("tokenizer")
    for source in (*without_paths["data"]["train"], *without_paths["data"]["heldout"]):
        source.pop("path")
    together = {key: value for key, value in flatten(without_paths).items() if _is_among(key, _TOGETHER)}
    return defining_settings(without_paths) | together


def differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted key, saved value, current value) of each defining setting that differs, by key."""
    before, now = defining_settings(saved), defining_settings(current)
    pairs = ((key, before.get(key, _ABSENT), now.get(key, _ABSENT)) for key in sorted({*before, *now}))
    return [(key, old, new) for key, old, new in pairs if old != new]


def run_digest(config: RunConfig) -> str:
    """sha256 of the defining settings: the same for all islands of a run and at every start of it."""
    text = json.dumps(defining_settings(config.model_dump(mode="json")), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_among(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
