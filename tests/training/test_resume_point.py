"""Which saved round islands go on from."""

import pytest

from loco_train.errors import CheckpointError
from loco_train.training.resume import common_round


def test_no_island_has_any():
    assert common_round([[], []]) is None


def test_the_newest_in_common():
    assert common_round([[1, 2], [2, 3]]) == 2


def test_before_and_after_an_outer_step_are_different_rounds():
    # Island 0 saved twice in round 1, last when its exchange failed; island 1 died after it had applied it.
    assert common_round([[1, 1], [1, 2]]) == 1


def test_an_island_that_died_before_its_first_save_starts_the_first_round_again():
    assert common_round([[0, 0], []]) == 0


def test_before_the_first_regular_save_nothing_can_be_expected():
    # Island 0 saved when the exchange of round 3 failed, of which island 1 had died.
    assert common_round([[3], []], first_saved=5) is None
    assert common_round([[3], [3]], first_saved=5) == 3
    with pytest.raises(CheckpointError):
        common_round([[5], []], first_saved=5)


def test_a_new_island_beside_old_ones_is_refused_and_not_a_fresh_start():
    with pytest.raises(CheckpointError, match="island 0: 1, 2; island 1: none"):
        common_round([[1, 2, 2], []])
