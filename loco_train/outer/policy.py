"""When mix2 is widened: while the islands are further apart than they usually are.

The levels of the JS distance differ from model to model, so that only a rise over a run's own says something.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Judged:
    """js: the islands' mean distance at the end of the inner steps of `round`. wide: mix2 from its outer step on."""

    round: int
    js: float
    wide: bool


Judgements = tuple[Judged, ...]


@dataclass(frozen=True)
class Widening:
    """Wide above `rise` times the usual distance, narrow again below `fall` times it, in between as it was.

    usual: the median of the last `window` distances at which mix2 was left narrow; nothing is widened before there are
    as many, because a new model's islands agree more than they ever will again. What is measured while it is wide does
    not count: the usual would go up with the trouble, and mix2 be narrowed in the midst of it.
    """

    rise: float
    fall: float
    window: int

    def judge(self, earlier: Judgements, *, round: int, js: float) -> Judgements:
        """With this round's judgement last, and no more of the earlier ones than the next ones need."""
        # After a resume a round is measured again: its first judgement must not become its own past.
        before = tuple(each for each in earlier if each.round < round)
        wide = is_wide(before)
        usual = self.usual(before)
        if usual is not None:
            wide = js > self.rise * usual or (wide and js >= self.fall * usual)
        return self._needed((*before, Judged(round, js, wide)))

    def usual(self, earlier: Judgements) -> float | None:
        narrow = [each.js for each in earlier if not each.wide]
        return statistics.median(narrow[-self.window :]) if len(narrow) >= self.window else None

    def _needed(self, judgements: Judgements) -> Judgements:
        # One more than the window, and the last but one: the last may be dropped again.
        narrow = [each for each in judgements if not each.wide][-self.window - 1 :]
        return tuple(each for each in judgements if each in narrow or each in judgements[-2:])


def is_wide(judgements: Sequence[Judged]) -> bool:
    """As the last judgement says; narrow before the first."""
    return bool(judgements) and judgements[-1].wide
