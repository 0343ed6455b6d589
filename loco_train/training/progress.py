"""How far a run is: the few numbers from which schedules, data position and round follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loco_train.config.schema import RunConfig
from loco_train.data.loader import RoundPlan


@dataclass(frozen=True)
class Progress:
    """Position of one island in its run.

    step: inner steps done. round: outer rounds done. steps_into_round: inner steps done since the last outer step;
    equal to the island's inner steps when only the outer step of the round is missing.
    cursor: sample ordinal at which the current round began: the sequences that all islands had consumed by then.
    """

    step: int = 0
    round: int = 0
    steps_into_round: int = 0
    cursor: int = 0

    def after_step(self) -> Progress:
        return replace(self, step=self.step + 1, steps_into_round=self.steps_into_round + 1)

    def after_round(self, *, next_cursor: int) -> Progress:
        return Progress(step=self.step, round=self.round + 1, steps_into_round=0, cursor=next_cursor)

    def tokens(self, config: RunConfig) -> int:
        """Tokens that all islands together have consumed, taking the others to be as far into the round."""
        in_round = self.steps_into_round * sum(config.steps_per_round) * config.batch.island // config.inner_steps
        return (self.cursor + in_round) * config.batch.sequence_length


def round_plan(config: RunConfig, *, cursor: int) -> RoundPlan:
    """Which samples of the round that begins at `cursor` are whose."""
    return RoundPlan(cursor=cursor, counts=tuple(steps * config.batch.island for steps in config.steps_per_round))
