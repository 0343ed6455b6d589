"""Held-out loss of the consensus and of the island's own model, on the same sequences every time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from loco_train.config.schema import RunConfig
from loco_train.islands import Engine
from loco_train.telemetry.events import EvaluationDone
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.outer_step import Consensus, OuterStep
from loco_train.training.progress import Progress

NOTHING_SENT = Consensus()


@dataclass
class Evaluator:
    """Evaluates before the first step, after the last round, and every `evaluation.every_rounds` rounds.

    batches: this data parallel rank's share of the held-out sequences.
    """

    config: RunConfig
    engine: Engine
    batches: Sequence[Tensor]
    events: EventLog
    clock: PhaseClock

    def before_training(self, progress: Progress) -> None:
        if progress == Progress():
            self._evaluate("consensus", progress)

    def before_outer_step(self, progress: Progress) -> None:
        """The island's own model, at the end of its inner steps; where nothing is exchanged it is the consensus."""
        if self.config.islands.count > 1 and self._is_due(progress.round + 1):
            self._evaluate("island", progress)

    def after_outer_step(self, progress: Progress, outer_step: OuterStep) -> None:
        if self._is_due(progress.round):
            with outer_step.consensus(progress) as consensus:
                self._evaluate("consensus", progress, consensus)

    def _is_due(self, rounds_done: int) -> bool:
        every = self.config.evaluation.every_rounds
        return rounds_done == self.config.rounds or (every > 0 and rounds_done % every == 0)

    def _evaluate(self, scope: str, progress: Progress, consensus: Consensus = NOTHING_SENT) -> None:
        begin = time.perf_counter()
        with self.clock.phase("evaluate"):
            loss = self.engine.evaluate(self.batches)
        self.events.emit(
            EvaluationDone(
                step=progress.step,
                round=progress.round,
                scope=scope,
                loss=loss,
                perplexity=math.exp(min(loss, 700.0)),
                seconds=time.perf_counter() - begin,
                distance_l2=consensus.distance,
                bytes_sent=consensus.bytes_sent,
            )
        )
