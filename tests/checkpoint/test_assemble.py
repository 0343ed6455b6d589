"""Whole parameters from shards: tensor parallel pieces, ZeRO ranges, replicas; each element exactly once."""

from dataclasses import replace

import pytest
import torch

from loco_train.checkpoint import ConsensusParameters, IslandParameters, open_step, select_checkpoints
from loco_train.checkpoint.assemble import piece_view
from loco_train.checkpoint.write import RankContent
from loco_train.errors import CheckpointError
from loco_train.shards import Partition, Shard
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model, write_by_hand, write_run

MODEL = tiny_model()
QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
NORM = "decoder.layers.0.input_layernorm.weight"


def written(folder, contents, *, tensor, data):
    write_by_hand(folder, make_header(MODEL, step=10, tensor=tensor, data=data), contents)
    return open_step(folder)


@pytest.mark.parametrize(("tensor", "data"), [(1, 1), (2, 1), (1, 3), (2, 2), (4, 5)])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_come_back_from_any_layout(tmp_path, tensor, data, tied):
    parameters = random_parameters(tiny_model(tied_embeddings=tied), seed=4)
    checkpoint = written(tmp_path, cut(parameters, tensor=tensor, data=data), tensor=tensor, data=data)
    for kind, offset in (("master", 0), ("base", 1), ("momentum", 2), ("exp_avg", 3)):
        whole = IslandParameters(checkpoint, kind=kind)
        assert list(whole.shapes) == list(parameters)
        assert all(torch.equal(whole.read(name), value + offset) for name, value in parameters.items()), kind


def test_a_piece_of_a_fused_weight_is_a_part_of_each_block():
    # Gate rows 0-3, up rows 10-13, cut in two: the second piece has the second half of both.
    whole = torch.tensor([0.0, 1, 2, 3, 10, 11, 12, 13])
    assert piece_view(whole, Partition(dim=0, blocks=2, index=1, count=2)).flatten().tolist() == [2, 3, 12, 13]
    columns = torch.arange(8.0).view(2, 4)
    assert piece_view(columns, Partition(dim=1, index=1, count=2)).reshape(2, 2).tolist() == [[2, 3], [6, 7]]


def change_shard(contents, name, **changes):
    """The same contents where the first rank that holds `name` describes its shard otherwise."""
    for rank, content in enumerate(contents):
        shards = list(content.shards)
        for index, shard in enumerate(shards):
            if shard.name == name:
                shards[index] = replace(shard, **changes)
                return [*contents[:rank], RankContent(shards, content.tensors, {}), *contents[rank + 1 :]]
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("embedding.word_embeddings.weight", {"length": 100}, "elements 100 to 30880 are missing"),
        ("embedding.word_embeddings.weight", {"start": 5}, "elements 0 to 5 are missing"),
        ("embedding.word_embeddings.weight", {"length": 31000}, "elements 30880 to 31000 are there twice"),
        ("embedding.word_embeddings.weight", {"owner": False}, "elements 0 to 30880 are missing"),
        (NORM, {"owner": False}, f"no rank owns {NORM}"),
        (NORM, {"shape": (65,)}, "covered up to element 64 of 65"),
        (QKV, {"partition": Partition(dim=0, index=0, count=4)}, f"pieces of {QKV}"),
    ],
)
def test_gaps_overlaps_and_orphans_are_found(tmp_path, name, changes, problem):
    # Tied, so that the middle of all parameters, where two data parallel ranks meet, lies in the embedding: at 30880.
    parameters = random_parameters(tiny_model(tied_embeddings=True), seed=0)
    contents = change_shard(cut(parameters, tensor=2, data=2), name, **changes)
    checkpoint = written(tmp_path, contents, tensor=2, data=2)
    with pytest.raises(CheckpointError, match=problem):
        IslandParameters(checkpoint)


def test_replicas_are_compared_never_averaged(tmp_path):
    contents = cut(random_parameters(MODEL, seed=0), tensor=2, data=1)
    contents[1].tensors[f"master/{NORM}"][3] += 1e-6
    whole = IslandParameters(written(tmp_path, contents, tensor=2, data=1))
    with pytest.raises(CheckpointError, match=f"copy of master/{NORM} on rank 1 differs from its owner's"):
        whole.read(NORM)
    whole.read("decoder.final_layernorm.weight")


def test_the_owners_copy_of_a_tied_weight_counts(tmp_path):
    name = "embedding.word_embeddings.weight"
    parameters = random_parameters(tiny_model(tied_embeddings=True), seed=0)
    owner = cut(parameters, tensor=1, data=1)[0]
    copy = parameters[name].reshape(-1) + 1e-7
    shard = Shard(name, tuple(parameters[name].shape), Partition(dim=0), 0, copy.numel(), owner=False)
    last_stage = RankContent((shard,), {f"master/{name}": copy}, {})
    whole = IslandParameters(written(tmp_path, [owner, last_stage], tensor=1, data=2))
    assert torch.equal(whole.read(name), parameters[name])


def test_a_kind_that_was_not_saved_is_named(tmp_path):
    whole = IslandParameters(
        written(tmp_path, cut(random_parameters(MODEL, seed=0), tensor=1, data=1), tensor=1, data=1), kind="exp_avg_sq"
    )
    with pytest.raises(CheckpointError, match=f"rank 0 has no tensor exp_avg_sq/{NORM}"):
        whole.read(NORM)


def test_the_consensus_is_the_mean_and_the_spread_is_the_distance_to_it(tmp_path):
    parameters = write_run(tmp_path, MODEL, islands=3, tensor=2)
    consensus = ConsensusParameters([IslandParameters(c) for c in select_checkpoints(tmp_path).checkpoints])
    assert consensus.shapes == IslandParameters(select_checkpoints(tmp_path, island=0).first).shapes
    distances, norm = torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for name in consensus.shapes:
        values = torch.stack([parameters[i, 10][name] for i in range(3)]).double()
        mean = values.mean(dim=0)
        # The mean is taken in fp64 and rounded once.
        assert torch.equal(consensus.read(name), mean.float()), name
        distances += (values - mean).square().flatten(1).sum(dim=1)
        norm += mean.square().sum()
    spread = consensus.spread()
    assert spread.distances == pytest.approx(distances.sqrt().tolist(), rel=1e-9)
    assert spread.norm == pytest.approx(norm.sqrt().item(), rel=1e-9)
    assert spread.relative == pytest.approx((distances.mean() / norm).sqrt().item(), rel=1e-9)


def test_equal_islands_have_themselves_as_consensus_and_no_spread(tmp_path):
    parameters = random_parameters(MODEL, seed=1)
    checkpoint = written(tmp_path, cut(parameters, tensor=2, data=1), tensor=2, data=1)
    consensus = ConsensusParameters([IslandParameters(checkpoint)] * 3)
    assert all(torch.equal(consensus.read(name), value) for name, value in parameters.items())
    assert consensus.spread().relative == 0.0


def test_islands_with_other_parameters_have_no_consensus(tmp_path):
    first = written(tmp_path / "a", cut(random_parameters(MODEL, seed=1), tensor=1, data=1), tensor=1, data=1)
    other = tiny_model(layers=1)
    second = written(tmp_path / "b", cut(random_parameters(other, seed=1), tensor=1, data=1), tensor=1, data=1)
    with pytest.raises(CheckpointError, match=r"islands 0 and 1 have different parameters[^$]*decoder\.layers\.1"):
        ConsensusParameters([IslandParameters(first), IslandParameters(second)])
