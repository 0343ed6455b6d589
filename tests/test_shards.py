"""Shards survive JSON, and lie in flat buffers without overlap."""

import itertools
import json

import pytest

from loco_train.shards import ALIGNMENT, FlatLayout, Partition, Shard


def shard(length: int, *, start: int = 0) -> Shard:
    return Shard("a.weight", (8, 6), Partition(dim=0, blocks=2, index=1, count=2), start, length)


def test_json_gives_the_same_shard():
    first = shard(5, start=3)
    assert Shard.from_json(json.loads(json.dumps(first.to_json()))) == first


@pytest.mark.parametrize(
    ("partition", "shape"),
    [
        (Partition(dim=0, blocks=2, index=0, count=2), (4, 6)),
        (Partition(dim=1, index=2, count=3), (8, 2)),
        (Partition(), (8, 6)),
    ],
)
def test_the_shape_of_a_piece(partition, shape):
    assert Shard("a", (8, 6), partition, 0, 1).piece_shape == shape


@pytest.mark.parametrize("lengths", [(), (1,), (ALIGNMENT,), (1, ALIGNMENT + 1, 5), (0, 3, 0)])
def test_flat_layouts_are_aligned_ordered_and_just_large_enough(lengths):
    layout = FlatLayout.of(tuple(shard(length) for length in lengths))
    ranges = layout.ranges()
    assert [end - begin for _, begin, end in ranges] == list(lengths)
    assert all(begin % ALIGNMENT == 0 for _, begin, _ in ranges)
    assert all(a_end <= b_begin for (_, _, a_end), (_, b_begin, _) in itertools.pairwise(ranges))
    assert layout.parameters == sum(lengths)
    assert layout.numel == sum(-(-length // ALIGNMENT) * ALIGNMENT for length in lengths)


def test_chosen_neighbours_are_one_range_with_the_padding_between_them():
    layout = FlatLayout.of(tuple(shard(length, start=length) for length in (1, ALIGNMENT + 1, 5, 7)))
    assert layout.joined(lambda each: each.length in (1, 129, 7)) == ((0, 257), (512, 519))
    assert layout.joined(lambda each: False) == ()
    # Without gaps: what lies between two of them must not be taken for padding.
    tight = FlatLayout(layout.shards, (0, 1, 130, 135), 142)
    assert tight.joined(lambda each: each.length in (1, 5)) == ((0, 1), (130, 135))
    assert tight.joined(lambda each: True) == ((0, 142),)
