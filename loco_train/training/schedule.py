"""The learning rate as a function of tokens consumed by all islands.

Driven by tokens and not by an island's own steps, so that an island with fewer inner steps does not lag in the decay.
"""

from __future__ import annotations

import math

from loco_train.config.schema import ScheduleConfig


def learning_rate(schedule: ScheduleConfig, *, peak: float, tokens: int, total_tokens: int) -> float:
    """Learning rate for the step that begins after `tokens` of `total_tokens`: linear warm-up, then decay.

    The decay runs from `peak` at the end of the warm-up to `final_fraction * peak` at the last token; past it the
    rate stays there.
    """
    warmup_tokens = schedule.warmup_fraction * total_tokens
    if tokens < warmup_tokens:
        return peak * (schedule.start_fraction + (1 - schedule.start_fraction) * tokens / warmup_tokens)
    if schedule.kind == "constant":
        return peak
    done = min(1.0, (tokens - warmup_tokens) / max(1.0, total_tokens - warmup_tokens))
    remaining = 1 - done if schedule.kind == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * remaining)
