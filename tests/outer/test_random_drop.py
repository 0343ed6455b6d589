"""Which elements DARE drops follows from their place in the model alone, and they are a random share of it."""

import math

import pytest
import torch
from loco_kernels.random import uniform

from loco_train.checkpoint.assemble import piece_view
from loco_train.outer import Draw
from loco_train.outer.random_drop import RandomDrop
from loco_train.shards import FlatLayout, Partition, Shard


def layout(*shards: Shard) -> FlatLayout:
    return FlatLayout.of(shards)


def dropped(shard: Shard, *, draw: Draw | None = None, island: int = 0, probability: float = 0.3) -> torch.Tensor:
    flat = torch.ones(layout(shard).numel, dtype=torch.float64)
    RandomDrop(layout(shard), probability)(flat, draw or Draw(0, 0), island)
    return flat[: shard.length]


@pytest.mark.parametrize("partition", [(0, 1), (1, 1), (0, 2), (None, 1)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_piece_drops_what_the_whole_does(partition, count):
    dim, blocks = partition
    shape = (24, 16)
    whole = dropped(Shard("w", shape, Partition(), 0, 24 * 16)).view(shape)
    for index in range(count if dim is not None else 1):
        cut = Partition(dim, blocks, index, count if dim is not None else 1)
        wanted = piece_view(whole, cut).reshape(-1)
        for start, length in ((0, len(wanted)), (17, len(wanted) - 40)):
            assert torch.equal(dropped(Shard("w", shape, cut, start, length)), wanted[start : start + length])


def test_a_random_share_is_dropped_and_the_mean_kept():
    numel = 100_000
    kept = dropped(Shard("w", (numel,), Partition(), 0, numel))
    # Standard deviation of the share: sqrt(0.3 * 0.7 / 1e5) = 1.45e-3; within five of them.
    assert abs(float((kept == 0).double().mean()) - 0.3) < 5 * math.sqrt(0.21 / numel)
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.7}


def test_islands_rounds_and_parameters_drop_independently():
    numel = 100_000
    shard = Shard("w", (numel,), Partition(), 0, numel)
    first = dropped(shard) == 0
    for other in (
        dropped(shard, island=1),
        dropped(shard, draw=Draw(0, 1)),
        dropped(shard, draw=Draw(1, 0)),
        dropped(Shard("x", (numel,), Partition(), 0, numel)),
    ):
        both = float((first & (other == 0)).double().mean())
        assert abs(both - 0.09) < 5 * math.sqrt(0.09 * 0.91 / numel)


def test_uniform_numbers_are_uniform():
    numbers = uniform(torch.arange(100_000), key=7)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    counts = torch.histc(numbers, bins=100, min=0, max=1)
    # Chi squared with 99 degrees of freedom: mean 99, standard deviation sqrt(198) = 14; within five of them.
    assert abs(float(((counts - 1000) ** 2 / 1000).sum()) - 99) < 5 * math.sqrt(198)
