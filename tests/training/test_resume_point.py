"""Which saved point islands go on from."""

import pytest

from loco_train.errors import CheckpointError
from loco_train.training.resume import SavedPoint, common_point


def points(*pairs: tuple[int, int]) -> list[SavedPoint]:
    return [SavedPoint(*pair) for pair in pairs]


def test_no_island_has_any():
    assert common_point([[], []]) is None


def test_the_newest_in_common():
    assert common_point([points((10, 1), (20, 2)), points((20, 2), (30, 3))]) == SavedPoint(20, 2)


def test_before_and_after_an_outer_step_are_different_points():
    # Island 0 saved when the exchange of round 2 failed; island 1 died after it had applied it.
    assert common_point([points((10, 1), (20, 1)), points((10, 1), (20, 2))]) == SavedPoint(10, 1)


def test_a_new_island_beside_old_ones_is_refused_and_not_a_fresh_start():
    with pytest.raises(CheckpointError, match="island 0: 10, 20; island 1: none"):
        common_point([points((10, 1), (20, 2)), []])
