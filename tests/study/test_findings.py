"""Verdicts: from made-up rows whose answer is known."""

import math
from types import SimpleNamespace

import pytest

from loco_train.study.findings import Found, Spread, differences, gaps, judge_growth, judge_order
from loco_train.study.settings import Growth, Order, Point


def found(variant: str, *losses: float | None, islands: int = 8) -> Found:
    rows = {seed: SimpleNamespace(loss=loss) for seed, loss in enumerate(losses)}
    return Found(Point(variant=variant, islands=islands), rows)


@pytest.mark.parametrize(
    ("second", "third", "says"),
    [
        ((2.1, 2.3), (2.4, 2.5), "agrees, with every seed"),
        ((2.1, 2.1), (2.4, 2.5), "agrees in the mean, not with every seed"),
        ((2.1, 2.3), (1.4, 1.5), "agrees in part"),
        ((1.9, 2.0), (1.4, 1.5), "does not agree"),
        ((2.1, 2.3), (2.4, None), "agrees, with every seed"),
    ],
)
def test_an_order(second, third, says):
    verdict = judge_order(
        Order(claim="a < b < c", variants=("a", "b", "c")),
        [found("a", 2.0, 2.15), found("b", *second), found("c", *third)],
    )
    assert verdict.says == says


def test_an_order_of_points_that_are_not_there():
    assert judge_order(Order(claim="a < b", variants=("a", "b")), [found("a", 2.0)]).says == "not measured"


@pytest.mark.parametrize(("last", "says"), [(2.9, "agrees, with every seed"), (2.15, "agrees in part")])
def test_a_gap_that_grows_or_not(last, says):
    points = [found("under", 2.0, 2.0, islands=n) for n in (1, 2, 4)]
    points += [found("over", over, over + 0.01, islands=n) for n, over in ((1, 2.1), (2, 2.2), (4, last))]
    growth = Growth(claim="grows", over="over", under="under")
    assert judge_growth(growth, points).says == says
    assert gaps(growth, points)[1] == pytest.approx([0.1, 0.11])


def test_differences_are_of_the_same_seed():
    one, other = found("a", 2.0, 3.0), Found(Point(variant="b"), {1: SimpleNamespace(loss=2.5)})
    assert differences(one, other) == [0.5]
    assert differences(found("a", None), found("b", None)) == [0.0]


def test_a_spread_with_a_run_that_diverged():
    assert Spread.of([1.0, math.inf]).mean == math.inf
    assert Spread.of([1.0]) == Spread(1.0, 0.0, 1)
