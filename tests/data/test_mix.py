import numpy as np
import pytest

from loco_train.data.mix import CYCLE, Mix, apportion
from loco_train.errors import DataError

WEIGHTS = [[1.0], [1, 1], [0.7, 0.2, 0.1], [3, 1, 1, 1, 1], [1e-3, 1.0], [1e9, 2e9, 1e9 / 3]]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_counts_are_exact_in_every_cycle(weights):
    mix = Mix(weights, seed=3)
    assert sum(mix.counts) == CYCLE
    for weight, count in zip(weights, mix.counts, strict=True):
        assert abs(count - CYCLE * weight / sum(weights)) < 1
    for cycle in (0, 1, 10**9):
        found = mix.locate(np.arange(cycle * CYCLE, (cycle + 1) * CYCLE))
        assert tuple(np.bincount(found.source, minlength=len(weights))) == mix.counts


@pytest.mark.parametrize("weights", WEIGHTS)
def test_each_source_is_read_in_order_without_a_gap(weights):
    found = Mix(weights, seed=3).locate(np.arange(3 * CYCLE + 17))
    for source in range(len(weights)):
        positions = found.position[found.source == source]
        assert np.array_equal(positions, np.arange(len(positions)))


def test_any_ordinal_is_located_by_itself():
    mix = Mix([2, 1], seed=3)
    whole = mix.locate(np.arange(10_000))
    for ordinal in (0, 4095, 4096, 9999):
        alone = mix.locate(np.array([ordinal]))
        assert (alone.source[0], alone.position[0]) == (whole.source[ordinal], whole.position[ordinal])


def test_sources_are_spread_over_the_cycle():
    source = Mix([1, 1], seed=3).locate(np.arange(CYCLE)).source
    # Of 256 draws without replacement from halves: deviation sqrt(256)/2 = 8; six of them.
    assert all(abs(part.sum() - 128) < 48 for part in np.split(source, 16))
    assert not np.array_equal(source, Mix([1, 1], seed=4).locate(np.arange(CYCLE)).source)


def test_largest_remainders_win_and_ties_go_to_the_first():
    assert apportion([1, 1, 1], total=10) == (4, 3, 3)
    assert apportion([0.5, 0.3, 0.2], total=4) == (2, 1, 1)
    assert apportion([5, 3, 1], total=0) == (0, 0, 0)


def test_a_source_that_would_never_be_read_is_refused():
    with pytest.raises(DataError, match=r"data\.train\.1\.weight is too small"):
        Mix([1.0, 1e-6], seed=3)
