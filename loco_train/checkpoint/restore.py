"""Resuming: each rank gets its own tensors back, or all ranks refuse with the same reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from loco_train.checkpoint.collective import island_rank, on_every_rank
from loco_train.checkpoint.compare import require_same_run
from loco_train.checkpoint.manifest import Header
from loco_train.checkpoint.read import Checkpoint, older_choice, open_existing
from loco_train.checkpoint.steps import newest_step
from loco_train.errors import CheckpointError
from loco_train.shards import Shard


@dataclass(frozen=True)
class RankState:
    """What `save_checkpoint` was given on this rank: CPU tensors by key, scalars, and the header."""

    folder: Path
    header: Header
    tensors: dict[str, Tensor]
    scalars: dict[str, float]


def restore_checkpoint(
    checkpoints: Path,
    *,
    shards: Sequence[Shard],
    island: int,
    config: Mapping[str, Any],
    run_id: str | None = None,
    step: int | None = None,
) -> RankState | None:
    """This rank's part of the newest checkpoint of an island, or of `step`; collective over the default group.

    Args:
        shards: what this rank's engine holds; must be what it held when it saved.
        island, config, run_id: of this run; see `require_same_run`.

    Returns:
        None on all ranks where the island has no checkpoint at all and no step was asked for.

    Raises:
        CheckpointError: on all ranks: damaged, foreign, or of another run, layout or configuration.
    """
    doing = f"resuming from {checkpoints}"
    checkpoint = _open(checkpoints, step=step, doing=doing)
    if checkpoint is None:
        return None

    def check() -> None:
        header = checkpoint.manifest.header
        require_same_run(header, run_id=run_id, island=island, config=config, where=checkpoint.folder)
        _require_same_shards(checkpoint, shards)

    on_every_rank(check, doing=doing)
    return _load(checkpoint, doing=doing)


def _open(checkpoints: Path, *, step: int | None, doing: str) -> Checkpoint | None:
    steps = on_every_rank(lambda: newest_step(checkpoints) if step is None else step, doing=doing)
    if len(set(steps)) != 1:
        raise CheckpointError(
            f"the ranks of this island see different checkpoints in {checkpoints}",
            got=", ".join(f"rank {rank}: {found}" for rank, found in enumerate(steps)),
            fix="run_dir must be on a file system that all nodes of an island share",
        )
    wanted = steps[0]
    if wanted is None:
        return None
    opened: list[Checkpoint] = []  # kept out of the gathered results: a manifest is large where there are many ranks
    with _naming_older(checkpoints, before=wanted, doing=doing):
        on_every_rank(lambda: opened.append(open_existing(checkpoints, wanted)), doing=doing)
    return opened[0]


def _load(checkpoint: Checkpoint, *, doing: str) -> RankState:
    """Each rank verifies and reads its own file; rank 0 verifies the attachments too."""
    manifest = checkpoint.manifest
    record = manifest.ranks[island_rank()]
    attachments = manifest.attachments if island_rank() == 0 else ()
    loaded: list[dict[str, Tensor]] = []

    def verify_and_load() -> None:
        checkpoint.verify([record, *attachments])
        loaded.append(load_file(checkpoint.path(record)))

    with _naming_older(checkpoint.folder.parent, before=manifest.header.step, doing=doing):
        on_every_rank(verify_and_load, doing=doing)
    return RankState(checkpoint.folder, manifest.header, loaded[0], dict(record.scalars))


@contextlib.contextmanager
def _naming_older(checkpoints: Path, *, before: int, doing: str) -> Iterator[None]:
    """Add to a collective error which older checkpoint is whole; rank 0 looks, because that reads all of it."""
    try:
        yield
    except CheckpointError as error:
        choices = on_every_rank(
            lambda: older_choice(checkpoints, before=before) if island_rank() == 0 else None, doing=doing
        )
        raise CheckpointError(error.problem, fix=choices[0]) from error


def _require_same_shards(checkpoint: Checkpoint, shards: Sequence[Shard]) -> None:
    rank, records = island_rank(), checkpoint.manifest.ranks
    if rank >= len(records):
        raise CheckpointError(f"{checkpoint.folder} has no rank {rank}", got=f"{len(records)} ranks saved it")
    saved, held = records[rank].shards, tuple(shards)
    if saved != held:
        pairs = zip((*saved, *[None] * len(held)), (*held, *[None] * len(saved)), strict=False)
        old, new = next(pair for pair in pairs if pair[0] != pair[1])
        raise CheckpointError(f"{checkpoint.folder}: rank {rank} saved other shards", got=old, allowed=new)
