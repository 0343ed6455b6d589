"""When checkpoints are written, and what goes into one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from loco_train.checkpoint import Header, RankContent, retain, save_checkpoint
from loco_train.config.schema import RunConfig
from loco_train.islands import Engine
from loco_train.telemetry.events import CheckpointSaved
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.health import Health
from loco_train.training.outer_step import OuterStep
from loco_train.training.progress import Progress


@dataclass
class CheckpointKeeper:
    """Saves whole checkpoints of one island: after rounds, inside rounds, and before a round that could not be ended.

    folder: the island's checkpoints. attachments: files that travel along. announce_saved: tells the other islands of
    which round this one has a checkpoint now; the newest round that all have, None for one island.
    """

    config: RunConfig
    run_id: str
    folder: Path
    engine: Engine
    outer_step: OuterStep
    health: Health
    attachments: dict[str, bytes]
    events: EventLog
    clock: PhaseClock
    announce_saved: Callable[[int], int | None]

    def is_due_inside(self, progress: Progress) -> bool:
        """Whether to save inside a round; its end belongs to `is_due_after_round`."""
        every = self.config.checkpoint.every_steps
        inside = progress.steps_into_round < self.config.inner_steps
        return every > 0 and inside and progress.step % every == 0

    def is_due_after_round(self, progress: Progress) -> bool:
        every = self.config.checkpoint.every_rounds
        return progress.round == self.config.rounds or (every > 0 and progress.round % every == 0)

    def save(self, progress: Progress) -> None:
        """Write one checkpoint and drop the oldest. Collective over the island.

        Raises:
            CheckpointError: on every rank; the checkpoints that were there are as they were.
        """
        begin = time.perf_counter()
        with self.clock.phase("save"):
            path = save_checkpoint(
                self.folder, header=self._header(progress), content=self._content(), attachments=self.attachments
            )
            if dist.get_rank() == 0:
                common_round = self.announce_saved(progress.round)
                retain(self.folder, keep_last=self.config.checkpoint.keep_last, common_round=common_round)
        size = sum(file.stat().st_size for file in path.iterdir())
        seconds = time.perf_counter() - begin
        self.events.emit(
            CheckpointSaved(step=progress.step, round=progress.round, path=str(path), seconds=seconds, bytes=size)
        )

    def _content(self) -> RankContent:
        views = self.engine.views
        tensors = {**views.state(), **self.outer_step.tensors(), "rng": torch.get_rng_state()}
        return RankContent(shards=views.shards, tensors=tensors, scalars={**views.scalars(), **self.health.scalars()})

    def _header(self, progress: Progress) -> Header:
        parallel, islands = self.config.parallel, self.config.islands
        return Header(
            run_id=self.run_id,
            run_name=self.config.name,
            island=islands.index,
            islands=islands.count,
            step=progress.step,
            round=progress.round,
            steps_into_round=progress.steps_into_round,
            cursor=progress.cursor,
            tokens=progress.tokens(self.config),
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
            data=parallel.data,
            config=self.config.model_dump(mode="json"),
        )
