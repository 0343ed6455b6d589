"""Does a checkpoint belong to this run? Each setting that differs is named, with both values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loco_train.checkpoint.manifest import Header
from loco_train.config.compare import differences
from loco_train.errors import CheckpointError


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
