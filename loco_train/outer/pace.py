"""Unequal inner steps: how many each island does, so that nobody waits for the slowest (GASLoC, arXiv 2606.11081).

An island's round takes H_i steps and the exchange with its k peers. The slow ones do fewer steps, so that all rounds
take about the time that the others need for all H.
"""

from __future__ import annotations

from collections.abc import Sequence

from loco_train.errors import ConfigError


def balanced_inner_steps(
    *, step_seconds: Sequence[float], exchange_seconds: Sequence[float], most: int
) -> tuple[int, ...]:
    """Inner steps of each island, from 1 to `most`.

    step_seconds: of one inner step, by island. exchange_seconds: of all its exchanges in a round, by island: with k
    peers k times one. A round's time is the median of what the islands need for `most` steps: half of the islands
    and more are never slowed, however slow the others are.

    Raises:
        ConfigError: not as many numbers of each kind, or one that is no positive time.
    """
    if len(step_seconds) != len(exchange_seconds) or not step_seconds:
        raise ConfigError(
            "step and exchange times must be given for the same islands",
            got=f"{len(step_seconds)} step times and {len(exchange_seconds)} exchange times",
        )
    if not all(0 < seconds < float("inf") for seconds in step_seconds) or min(exchange_seconds) < 0:
        raise ConfigError("times must be positive", got=f"{list(step_seconds)} and {list(exchange_seconds)}")
    full = sorted(most * step + exchange for step, exchange in zip(step_seconds, exchange_seconds, strict=True))
    round_seconds = full[len(full) // 2]
    # A tiny excess, because a quotient that is whole may come out just below.
    return tuple(
        max(1, min(most, int((round_seconds - exchange) / step + 1e-9)))
        for step, exchange in zip(step_seconds, exchange_seconds, strict=True)
    )
