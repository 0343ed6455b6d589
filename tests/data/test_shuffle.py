import numpy as np
import pytest

from loco_train.data.shuffle import permute

SIZES = [*range(1, 40), 63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 65_537, 100_003]


def _whole(size, **key):
    return permute(np.arange(size), size=size, **{"seed": 1, "stream": 0, "epoch": 0, **key})


@pytest.mark.parametrize("size", SIZES)
def test_every_index_is_met_once(size):
    for epoch in range(2):
        assert np.array_equal(np.sort(_whole(size, epoch=epoch)), np.arange(size))


def test_any_position_is_reached_by_itself():
    whole = _whole(1000)
    for index in (0, 1, 500, 999):
        assert permute(np.array([index]), size=1000, seed=1, stream=0, epoch=0) == whole[index]
    assert np.array_equal(permute(np.array([[7, 3]]), size=1000, seed=1, stream=0, epoch=0), whole[[[7, 3]]])


def test_huge_sizes_need_no_memory():
    size = 2**50 + 12345
    places = permute(np.arange(size - 1000, size), size=size, seed=1, stream=0, epoch=0)
    assert len(np.unique(places)) == 1000
    assert places.min() >= 0
    assert places.max() < size


@pytest.mark.parametrize("change", [{"seed": 2}, {"stream": 1}, {"epoch": 1}])
def test_each_key_gives_another_permutation(change):
    # Two random permutations agree in about one place; 20 has probability 1/20! or so.
    assert np.sum(_whole(10_000) == _whole(10_000, **change)) < 20


def test_the_order_looks_random():
    """Neighbours end up unrelated, and each tenth of the positions draws from everywhere alike."""
    size = 100_000
    whole = _whole(size)
    # The correlation of independent pairs has deviation 1 / sqrt(size) = 0.003; five of them.
    assert abs(np.corrcoef(whole[:-1], whole[1:])[0, 1]) < 0.016
    # 10 x 10 cells of 1000 each, deviation under sqrt(1000) = 32; six of them.
    cells = np.histogram2d(np.arange(size), whole, bins=10)[0]
    assert np.abs(cells - 1000).max() < 190


def test_the_permutation_is_pinned():
    """Another order would make a resumed run read some samples twice: change it only with a new checkpoint format."""
    assert _whole(16, seed=1234).tolist() == [4, 7, 6, 13, 11, 9, 5, 12, 1, 2, 0, 8, 15, 3, 14, 10]
