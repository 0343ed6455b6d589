"""Where a run goes on: the newest point that all islands saved, restored on every rank; or a fresh start for all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from loco_train.checkpoint import (
    RankState,
    committed_steps,
    open_step,
    point_to,
    restore_checkpoint,
    retain,
)
from loco_train.checkpoint.steps import newest_step
from loco_train.config.schema import RunConfig
from loco_train.errors import CheckpointError
from loco_train.islands import Engine
from loco_train.training.health import Health
from loco_train.training.meeting import Meeting
from loco_train.training.outer_step import OuterStep
from loco_train.training.progress import Progress
from loco_train.transport.island import on_leader


@dataclass(frozen=True)
class SavedPoint:
    """A point that an island has a checkpoint of. The same step before and after an outer step are two points."""

    step: int
    round: int


def common_round(rounds: list[list[int]], *, first_saved: int = 1) -> int | None:
    """The newest round that every island has a checkpoint of; None for a fresh start of all.

    Between two outer steps islands do not depend on each other: each goes on from its own newest step in that round.
    An island without any is at the start of round 0, which it can go back to; and before the first regular save no
    island can be expected to have any: what one saved when an exchange failed is then of no use.

    first_saved: the round at whose end islands save for the first time.

    Raises:
        CheckpointError: islands have checkpoints, but none in common: starting afresh would throw them away.
    """
    if not any(rounds):
        return None
    newest = max(map(max, filter(None, rounds)))
    if newest == 0:
        return 0
    if not all(rounds) and newest < first_saved:
        return None
    shared = set.intersection(*map(set, rounds))
    if shared:
        return max(shared)
    told = "; ".join(f"island {i}: {', '.join(map(str, sorted(set(each)))) or 'none'}" for i, each in enumerate(rounds))
    raise CheckpointError(
        "the islands have no checkpoint of the same round",
        got=f"rounds saved by {told}",
        fix="bring back the missing checkpoints, or start a run with a run_dir of its own",
    )


def agree_on_point(folder: Path, *, meeting: Meeting) -> tuple[int | None, SavedPoint | None]:
    """The round that all islands go on in, None for a fresh start of all; and this island's newest point in it, None
    for an island that starts afresh there. The same on each rank of the island.

    folder: this island's checkpoints.
    """
    mine = meeting.all_succeed("reading checkpoints", lambda: on_leader(lambda: _saved_points(folder)))
    rounds = meeting.share("saved rounds", {"rounds": [point.round for point in mine]})
    settings = meeting.config.checkpoint
    # With saves inside rounds, or after each, every island has saved in its first round.
    first_saved = 1 if settings.every_steps else settings.every_rounds or meeting.config.rounds
    agreed = on_leader(lambda: common_round([document["rounds"] for document in rounds], first_saved=first_saved))
    return agreed, max((p for p in mine if p.round == agreed), key=lambda p: p.step, default=None)


def _saved_points(folder: Path) -> list[SavedPoint]:
    """Up to the newest, which must be whole; an older one that is damaged is no place to go back to."""
    points = []
    for step in committed_steps(folder):
        try:
            checkpoint = open_step(folder, step=step)
        except CheckpointError:
            if step == newest_step(folder):
                raise
            continue
        if checkpoint is not None:
            points.append(SavedPoint(step, checkpoint.manifest.header.round))
    return points


def restore(
    point: SavedPoint,
    *,
    folder: Path,
    config: RunConfig,
    run_id: str,
    engine: Engine,
    outer_step: OuterStep,
    health: Health,
) -> Progress:
    """Set engine, outer state, what health has decided and RNG to a saved point. Collective over the island.

    Raises:
        CheckpointError: on every rank: damaged, or of another run, layout or configuration.
    """
    state = restore_checkpoint(
        folder,
        shards=engine.views.shards,
        island=config.islands.index,
        config=config.model_dump(mode="json"),
        run_id=run_id,
        step=point.step,
    )
    assert state is not None, point  # a step was asked for
    engine.views.restore(state.tensors, state.scalars)
    for key, target in outer_step.tensors().items():
        target.copy_(state.tensors[key])
    health.restore(state.scalars)
    torch.set_rng_state(state.tensors["rng"])
    engine.views.verify_copies()
    if dist.get_rank() == 0:
        # Later steps belong to a future that is given up now; the next resume must not find them.
        point_to(folder, point.step)
        retain(folder, keep_last=config.checkpoint.keep_last, common_round=point.round)
    return _progress(state)


def _progress(state: RankState) -> Progress:
    header = state.header
    return Progress(
        step=header.step, round=header.round, steps_into_round=header.steps_into_round, cursor=header.cursor
    )
