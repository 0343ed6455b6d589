"""The learning rate over tokens: ends, middle, and no jump anywhere."""

from itertools import pairwise

import pytest

from loco_train.config.schema import ScheduleConfig
from loco_train.training.schedule import learning_rate

TOTAL = 10_000


def rate(tokens: int, **settings: object) -> float:
    return learning_rate(ScheduleConfig(**settings), peak=2.0, tokens=tokens, total_tokens=TOTAL)


@pytest.mark.parametrize(("kind", "middle"), [("cosine", 2.0 * 0.55), ("linear", 2.0 * 0.55), ("constant", 2.0)])
def test_warms_up_linearly_then_decays_to_the_final_fraction(kind, middle):
    end = 2.0 if kind == "constant" else 0.2
    assert rate(0, kind=kind) == pytest.approx(0.02)
    assert rate(500, kind=kind) == pytest.approx(2.0 * (0.01 + 0.99 * 0.5))
    assert rate(1000, kind=kind) == pytest.approx(2.0)
    assert rate(5500, kind=kind) == pytest.approx(middle)
    assert rate(TOTAL, kind=kind) == pytest.approx(end)
    assert rate(2 * TOTAL, kind=kind) == pytest.approx(end)


def test_cosine_is_above_the_line_before_the_middle():
    quarter = 1000 + 9000 // 4
    assert rate(quarter, kind="linear") == pytest.approx(2.0 * (0.1 + 0.9 * 0.75))
    assert rate(quarter, kind="cosine") == pytest.approx(2.0 * (0.1 + 0.9 * (0.5 + 0.5**0.5 / 2)))


def test_without_warmup_it_starts_at_the_peak():
    assert rate(0, warmup_fraction=0.0) == 2.0


def test_warmup_over_the_whole_run_never_divides_by_zero():
    assert rate(TOTAL, warmup_fraction=1.0) == pytest.approx(2.0)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_never_jumps(kind):
    rates = [rate(t, kind=kind) for t in range(0, TOTAL + 1, 10)]
    # One grid step is 1/100 of the warm-up, the steepest part: 0.0198.
    assert max(abs(a - b) for a, b in pairwise(rates)) < 0.02
