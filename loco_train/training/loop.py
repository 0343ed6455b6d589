"""The training loop: H inner steps, one outer step, again."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from torch import Tensor

from loco_train.config.schema import RunConfig
from loco_train.data.loader import BatchLoader, RoundPlan
from loco_train.errors import TransportError
from loco_train.islands import Engine, StepResult
from loco_train.telemetry.events import RoundDone, RunEnded, StepDone
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.evaluation import Evaluator
from loco_train.training.health import Health
from loco_train.training.keeper import CheckpointKeeper
from loco_train.training.outer_step import OuterReport, OuterStep
from loco_train.training.progress import Progress, round_plan
from loco_train.training.sample_log import SampleLog
from loco_train.training.schedule import learning_rate


@dataclass
class Trainer:
    """One island's training, from `progress` to the last round.

    Every rank of the island makes the same calls in the same order. What may differ between ranks (a failed exchange,
    a non-finite value) is agreed on inside `outer_step` before anything depends on it.
    """

    config: RunConfig
    engine: Engine
    loader: BatchLoader
    outer_step: OuterStep
    evaluator: Evaluator
    health: Health
    keeper: CheckpointKeeper
    samples: SampleLog
    events: EventLog
    clock: PhaseClock
    progress: Progress

    def run(self) -> None:
        """Train to the last round; at once done where that was reached before.

        Raises:
            TransportError, NonFinite: the round could not be ended; after a failed exchange a whole checkpoint from
                before it has been written.
        """
        if self.progress.round == self.config.rounds:
            return
        self.evaluator.before_training(self.progress)
        self.clock.start()
        while self.progress.round < self.config.rounds:
            learned = self._inner_steps()
            self._outer_step(learned=learned)
        self._ended()

    def _inner_steps(self) -> bool:
        """True unless the gradients of every step were NaN or infinite."""
        plan = self._plan()
        self.outer_step.begin_round(self.progress)
        finite: list[bool] = []
        while self.progress.steps_into_round < self.config.inner_steps:
            begin = time.perf_counter()
            with self.clock.phase("compute"):
                rate = self._learning_rate()
                result = self.engine.step(self._micro_batches(plan), lr=rate)
            self.progress = self.progress.after_step()
            finite.append(math.isfinite(result.loss) and math.isfinite(result.grad_norm))
            self._step_done(result, rate, seconds=time.perf_counter() - begin)
            if self.keeper.is_due_inside(self.progress):
                self._save(plan)
        self.evaluator.before_outer_step(self.progress)
        # DeepSpeed skips a step whose gradients are not finite, without a word: an island could skip them all.
        return any(finite) or not finite

    def _outer_step(self, *, learned: bool) -> None:
        plan = self._plan()
        try:
            self.health.before_outer_step(self.progress)
            report = self.outer_step.run(self.progress, learned=learned)
        except TransportError:
            # Nothing of the failed exchange was applied: this is the state to resume the exchange from.
            self._save(plan)
            raise
        self.samples.record(plan, self.progress)
        self.progress = self.progress.after_round(next_cursor=plan.next_cursor)
        self._round_done(report)
        if self.keeper.is_due_after_round(self.progress):
            self._save(self._plan())
        self.evaluator.after_outer_step(self.progress, self.outer_step)

    def _save(self, plan: RoundPlan) -> None:
        # The ledger first: a kill between the two leaves entries that the checkpoint does not know, and these are
        # dropped on resume. The other way round samples would be missing from it.
        self.samples.record(plan, self.progress)
        self.keeper.save(self.progress)

    def _plan(self) -> RoundPlan:
        """Which samples of the round are whose; follows from the cursor and the islands alone."""
        return round_plan(self.config, cursor=self.progress.cursor)

    def _micro_batches(self, plan: RoundPlan) -> list[Tensor]:
        batch, layout = self.config.batch, self.engine.layout
        first = plan.first(self.config.islands.index) + self.progress.steps_into_round * batch.island
        return self.loader.micro_batches(
            first, sequences=batch.island, micro=batch.micro, data_index=layout.data_index, data_count=layout.data
        )

    def _learning_rate(self) -> float:
        return learning_rate(
            self.config.schedule,
            peak=self.config.optimizer.lr,
            tokens=self.progress.tokens(self.config),
            total_tokens=self.config.total_tokens,
        )

    def _step_done(self, result: StepResult, rate: float, *, seconds: float) -> None:
        self.events.emit(
            StepDone(
                step=self.progress.step,
                round=self.progress.round,
                loss=result.loss,
                lr=rate,
                grad_norm=result.grad_norm,
                tokens=self.progress.tokens(self.config),
                tokens_per_second=self.config.batch.island * self.config.batch.sequence_length / seconds,
                step_seconds=seconds,
            )
        )

    def _round_done(self, report: OuterReport) -> None:
        seconds = self.clock.take_round()
        self.events.emit(
            RoundDone(
                round=self.progress.round,
                step=self.progress.step,
                compute_seconds=seconds["compute"],
                wait_seconds=seconds["wait"],
                outer_seconds=seconds["outer"],
                bytes_sent=report.bytes_sent,
                socket_bytes_sent=report.socket_bytes_sent,
                pseudo_gradient_norm=report.pseudo_gradient_norm,
                spread_l2=report.spread_l2,
            )
        )

    def _ended(self) -> None:
        self.events.emit(
            RunEnded(
                step=self.progress.step,
                round=self.progress.round,
                wall_seconds=self.clock.wall_seconds,
                compute_seconds=self.clock.total("compute"),
                compute_utilization=self.clock.compute_utilization,
                tokens=self.progress.tokens(self.config),
            )
        )
