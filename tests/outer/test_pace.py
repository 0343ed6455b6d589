"""Inner steps by measured times."""

import pytest

from loco_train.errors import ConfigError
from loco_train.outer.pace import balanced_inner_steps


@pytest.mark.parametrize(
    ("slow_link", "peers", "steps"),
    # GASLoC's straggler test, by the strict rule: a step of 1, an exchange of 1.5 at 1 Gbit/s, of 15 and 7.5 at 10 and
    # 20 % of it. (The authors ran 15, 1, 30 and 15.)
    [(15.0, 1, 16), (15.0, 2, 3), (7.5, 1, 24), (7.5, 2, 18)],
)
def test_the_papers_straggler(slow_link, peers, steps):
    exchange = [1.5 * peers] * 7 + [slow_link * peers]
    assert balanced_inner_steps(step_seconds=[1.0] * 8, exchange_seconds=exchange, most=30) == (30,) * 7 + (steps,)


def test_slow_compute_and_the_least_of_one_step():
    found = balanced_inner_steps(step_seconds=[1, 1, 1, 2, 100], exchange_seconds=[0, 0, 0, 0, 0], most=30)
    assert found == (30, 30, 30, 15, 1)
    assert balanced_inner_steps(step_seconds=[1, 1, 1], exchange_seconds=[0, 0, 999], most=30) == (30, 30, 1)


def test_the_slower_of_two_islands_is_slow():
    assert balanced_inner_steps(step_seconds=[1, 2], exchange_seconds=[0, 0], most=30) == (30, 15)
    assert balanced_inner_steps(step_seconds=[1, 1, 2, 2], exchange_seconds=[0] * 4, most=30) == (30, 30, 15, 15)


def test_a_little_slower_is_not_slow():
    assert balanced_inner_steps(step_seconds=[1, 1.04, 1.08], exchange_seconds=[0] * 3, most=30) == (30, 30, 30)


def test_rounds_take_little_longer_than_the_medians():
    step, exchange = [0.3, 0.7, 0.5, 0.9, 0.45], [1.0, 0.1, 4.0, 2.0, 0.5]
    found = balanced_inner_steps(step_seconds=step, exchange_seconds=exchange, most=20)
    median = sorted(20 * s + e for s, e in zip(step, exchange, strict=True))[2]
    assert all(h * s + e <= 1.1 * median + 1e-6 for h, s, e in zip(found, step, exchange, strict=True))


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("step", "exchange"),
    [([1], [1, 2]), ([], []), ([0], [1]), ([1], [-1]), ([NAN], [1]), ([1], [INFINITY]), ([1], [NAN])],
)
def test_what_are_no_times(step, exchange):
    with pytest.raises(ConfigError, match="times"):
        balanced_inner_steps(step_seconds=step, exchange_seconds=exchange, most=3)
