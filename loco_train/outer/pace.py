"""Unequal inner steps: how many each island does, so that nobody waits for the slowest (GASLoC, arXiv 2606.11081).

An island's round takes H_i steps and the exchange with its k peers. The slow ones do fewer steps, so that all rounds
take about the time that the others need for all H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loco_train.errors import ConfigError

# Others wait for an island that needs up to so many times what the median needs; a slower one does fewer steps.
_STRAGGLES = 1.1


def balanced_inner_steps(
    *, step_seconds: Sequence[float], exchange_seconds: Sequence[float], most: int
) -> tuple[int, ...]:
    """Inner steps of each island, from 1 to `most`.

    step_seconds: of one inner step, by island. exchange_seconds: of all its exchanges in a round, by island: with k
    peers k times one. A round's time is the longest that an island which is no straggler needs for `most` steps; a
    straggler needs over 1.1 times the median, which is the faster one's of two islands.

    Raises:
        ConfigError: not as many numbers of each kind, or one that is no time.
    """
    if len(step_seconds) != len(exchange_seconds) or not step_seconds:
        raise ConfigError(
            "step and exchange times must be given for the same islands",
            got=f"{len(step_seconds)} step times and {len(exchange_seconds)} exchange times",
        )
    if not all(map(math.isfinite, [*step_seconds, *exchange_seconds])) or not (
        min(step_seconds) > 0 and min(exchange_seconds) >= 0
    ):
        raise ConfigError(
            "these are no times of steps and exchanges",
            got=f"{list(step_seconds)} and {list(exchange_seconds)}",
            allowed="positive seconds of a step, and seconds of an exchange from 0 on",
        )
    full = sorted(most * step + exchange for step, exchange in zip(step_seconds, exchange_seconds, strict=True))
    median = full[(len(full) - 1) // 2]
    round_seconds = max(seconds for seconds in full if seconds <= _STRAGGLES * median)
    # A tiny excess, because a quotient that is whole may come out just below.
    return tuple(
        max(1, min(most, int((round_seconds - exchange) / step + 1e-9)))
        for step, exchange in zip(step_seconds, exchange_seconds, strict=True)
    )
