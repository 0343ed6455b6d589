"""What an island's model has consumed, written to its ledger round by round."""

from __future__ import annotations

from dataclasses import dataclass

from loco_train.data.ledger import Ledger
from loco_train.data.loader import RoundPlan
from loco_train.training.progress import Progress


@dataclass
class SampleLog:
    """Records each range of sample ordinals once, whether a round is recorded whole or in parts.

    ledger: None on all ranks but the first. step: inner steps recorded so far.
    """

    ledger: Ledger | None
    island: int
    sequences_per_step: int
    step: int

    def record(self, plan: RoundPlan, progress: Progress) -> None:
        """Record what was consumed of the current round since the last call."""
        steps = progress.step - self.step
        if steps and self.ledger:
            stop = plan.first(self.island) + progress.steps_into_round * self.sequences_per_step
            first = stop - steps * self.sequences_per_step
            self.ledger.record(round=progress.round, island=self.island, first=first, stop=stop)
        self.step = progress.step
