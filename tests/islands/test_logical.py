import torch

from loco_train.islands.logical import cut_piece, cut_shard
from loco_train.shards import Partition, Shard

WHOLE = torch.arange(24).view(8, 3)


def test_fused_blocks_are_cut_one_by_one() -> None:
    piece = cut_piece(WHOLE, Partition(dim=0, blocks=2, index=1, count=2))
    assert piece[:, 0].tolist() == [6, 9, 18, 21]  # rows 2, 3 of the first block and 6, 7 of the second


def test_columns() -> None:
    piece = cut_piece(WHOLE, Partition(dim=1, index=2, count=3))
    assert torch.equal(piece, WHOLE[:, 2:])


def test_a_shard_is_a_range_of_the_flattened_piece() -> None:
    shard = Shard("weight", (8, 3), Partition(dim=1, index=0, count=3), start=2, length=3)
    assert cut_shard(WHOLE, shard).tolist() == [6, 9, 12]


def test_replicas_are_whole() -> None:
    assert torch.equal(cut_piece(WHOLE, Partition()), WHOLE)
