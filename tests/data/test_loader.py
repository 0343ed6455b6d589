import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from loco_train.data.build import build_dataset
from loco_train.data.dataset import PackedSplit, TokenDataset, split_documents
from loco_train.data.loader import BatchLoader, RoundPlan, open_heldout, open_loader
from loco_train.data.mix import CYCLE
from loco_train.data.tokenizer import train_tokenizer
from loco_train.errors import DataError
from loco_train.testing.tiny import tiny_run

LENGTH = 16


@pytest.fixture(scope="module")
def run(dataset, tokenizer):
    return tiny_run(
        {
            "data.tokenizer": str(tokenizer.path),
            "data.train": [{"path": str(dataset)}],
            "data.heldout_fraction": 0.1,
            "model.vocab_size": 400,
        }
    )


@pytest.fixture(scope="module")
def loader(run):
    return open_loader(run)


def _split(run, tokenizer, *, heldout: bool):
    data = TokenDataset(_path(run), tokenizer=tokenizer, vocab_size=400)
    documents = split_documents(data.documents, heldout_fraction=0.1)[heldout]
    return PackedSplit(data, documents, sequence_length=LENGTH)


def _path(run):
    return Path(run.data.train[0].path)


def _samples(run, tokenizer, *, heldout: bool = False) -> list[tuple[int, ...]]:
    """Every sample of the split in the order of the file; random words make them distinct."""
    split = _split(run, tokenizer, heldout=heldout)
    found = [tuple(split.sample(index).tolist()) for index in range(split.samples)]
    assert len(set(found)) == len(found)
    return found


def _rows(tensors) -> list[tuple[int, ...]]:
    return [tuple(row.tolist()) for tensor in tensors for row in tensor]


def test_an_epoch_meets_every_sample_once_in_a_new_order_each_time(run, loader, tokenizer):
    samples = _samples(run, tokenizer)
    count = len(samples)
    first, second = (_rows([loader.batch(epoch * count, sequences=count)]) for epoch in range(2))
    assert Counter(first) == Counter(second) == Counter(samples)
    assert samples != first != second


def test_batches_have_the_documented_shape(loader):
    batch = loader.batch(5, sequences=3)
    assert (batch.shape, batch.dtype, batch.device.type) == ((3, LENGTH + 1), torch.int64, "cpu")
    micro = loader.micro_batches(5, sequences=12, micro=2, data_index=1, data_count=2)
    assert [tuple(m.shape) for m in micro] == [(2, LENGTH + 1)] * 3


# Islands, inner steps and data parallel ranks of each round; batches of 4, 8, ... per island.
ROUNDS = [(2, 3, 1, 4), (3, 2, 2, 8), (1, 5, 4, 4), (4, 1, 2, 4), (2, 2, 1, 8)]


def test_islands_that_come_and_go_consume_every_ordinal_once(loader):
    """Also with islands that take different numbers of steps."""
    cursor = 0
    consumed = []
    for islands, steps, ranks, batch in ROUNDS:
        plan = RoundPlan(cursor, tuple((steps + island) * batch for island in range(islands)))
        for island in range(islands):
            for step in range(steps + island):
                first = plan.first(island) + step * batch
                for rank in range(ranks):
                    consumed += _rows(
                        loader.micro_batches(first, sequences=batch, micro=1, data_index=rank, data_count=ranks)
                    )
        cursor = plan.next_cursor
    assert cursor == len(consumed) < 2000
    assert consumed == _rows([loader.batch(0, sequences=cursor)])


@pytest.mark.parametrize(("ranks", "micro"), [(1, 1), (1, 8), (2, 2), (4, 1), (8, 1)])
def test_ranks_are_disjoint_and_together_the_batch(loader, ranks, micro):
    whole = loader.batch(24, sequences=8)
    parts = [
        loader.micro_batches(24, sequences=8, micro=micro, data_index=rank, data_count=ranks) for rank in range(ranks)
    ]
    assert torch.equal(torch.cat([torch.cat(part) for part in parts]), whole)


def test_a_batch_that_does_not_divide_is_refused(loader):
    with pytest.raises(ValueError, match="do not divide"):
        loader.micro_batches(0, sequences=6, micro=2, data_index=0, data_count=2)
    with pytest.raises(ValueError, match="do not divide"):
        loader.micro_batches(0, sequences=6, micro=1, data_index=0, data_count=4)


def test_resuming_anywhere_equals_the_unbroken_run(run, loader, tokenizer):
    """A fresh loader at any ordinal, across the ends of epochs too."""
    epoch = len(_samples(run, tokenizer))
    unbroken = loader.batch(0, sequences=2 * epoch + 100)
    fresh = open_loader(run)
    for ordinal in [*range(40), *range(epoch - 10, epoch + 10), 2 * epoch - 1, 2 * epoch + 90]:
        assert torch.equal(fresh.batch(ordinal, sequences=10), unbroken[ordinal : ordinal + 10])


def test_heldout_samples_are_fixed_and_never_trained_on(run, loader, tokenizer):
    expected = _samples(run, tokenizer, heldout=True)
    assert _rows([open_heldout(run, 20).batch(0, sequences=20)]) == expected[:20]
    heldout = open_heldout(run, len(expected))
    assert isinstance(heldout, BatchLoader)
    micro = [heldout.micro_batches(0, sequences=20, micro=5, data_index=rank, data_count=2) for rank in range(2)]
    assert _rows([*micro[0], *micro[1]]) == expected[:20]
    assert not set(expected) & set(_samples(run, tokenizer))


def test_too_few_heldout_samples_says_how_many(run, tokenizer):
    there = len(_samples(run, tokenizer, heldout=True))
    with pytest.raises(DataError, match=rf"got: {there} sequences[\s\S]*at least {there + 1}"):
        open_heldout(run, there + 1)
    with pytest.raises(DataError, match="beyond the held-out sequences"):
        open_heldout(run, 8).batch(0, sequences=9)
    none = run.model_copy(update={"data": run.data.model_copy(update={"heldout_fraction": 0.0})})
    with pytest.raises(DataError, match="no held-out data"):
        open_heldout(none, 8)


@pytest.fixture(scope="module")
def mixed_run(run, documents, tokenizer, tmp_path_factory):
    """Two training sources 3 to 1, told apart by their documents, and a held-out source of its own."""
    folder = tmp_path_factory.mktemp("mixed")
    for name, part in (("a", documents[:90]), ("b", documents[90:180]), ("h", documents[180:])):
        build_dataset(part, folder / name, tokenizer)
    train = [{"path": str(folder / "a"), "weight": 3.0}, {"path": str(folder / "b"), "weight": 1.0}]
    data = {"data.train": train, "data.heldout": [{"path": str(folder / "h")}]}
    return tiny_run({"data.tokenizer": str(tokenizer.path), "model.vocab_size": 400, **data})


def _samples_of(prefix, tokenizer):
    data = TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)
    split = PackedSplit(data, split_documents(data.documents, heldout_fraction=0)[0], sequence_length=LENGTH)
    return [tuple(split.sample(index).tolist()) for index in range(split.samples)]


def test_a_mix_holds_its_sources_by_weight_and_reads_each_evenly(mixed_run, tokenizer):
    rows = Counter(_rows([open_loader(mixed_run).batch(0, sequences=CYCLE)]))
    for source, count in zip(mixed_run.data.train, (3072, 1024), strict=True):
        samples = _samples_of(Path(source.path), tokenizer)
        met = [rows[sample] for sample in samples]
        assert sum(met) == count
        # Epoch after epoch: no sample is met again before all the others are.
        assert {count // len(samples), -(-count // len(samples))} >= set(met)


def test_a_heldout_source_is_read_whole(mixed_run, tokenizer):
    samples = _samples_of(Path(mixed_run.data.heldout[0].path), tokenizer)
    count = len(samples)
    assert _rows([open_heldout(mixed_run, count).batch(0, sequences=count)]) == samples


def test_a_mix_shares_heldout_sequences_by_weight(mixed_run):
    data = mixed_run.data.model_copy(update={"heldout": (), "heldout_fraction": 0.2})
    run = mixed_run.model_copy(update={"data": data})
    rows = _rows([open_heldout(run, 16).batch(0, sequences=16)])
    alone = run.model_copy(update={"data": data.model_copy(update={"train": data.train[:1]})})
    assert rows[:12] == _rows([open_heldout(alone, 12).batch(0, sequences=12)])
    assert not set(rows) & set(_rows([open_loader(run).batch(0, sequences=CYCLE)]))


def test_the_fingerprint_tells_what_differs(run, mixed_run, documents, tokenizer, tmp_path):
    same, found = open_loader(run).fingerprint(), open_loader(run).fingerprint()
    assert same == found
    assert found["tokenizer"] == tokenizer.sha256
    changed = {
        "seed": run.model_copy(update={"seed": 1}),
        "sequence_length": run.model_copy(update={"batch": run.batch.model_copy(update={"sequence_length": 8})}),
        "sources": mixed_run,
    }
    for key, other in changed.items():
        differing = {name for name, value in open_loader(other).fingerprint().items() if value != found[name]}
        assert differing == {key}


def test_a_copy_elsewhere_has_the_same_fingerprint(run, documents, tokenizer, tmp_path):
    build_dataset(documents, tmp_path / "copy", tokenizer)
    data = run.data.model_copy(update={"train": (run.data.train[0].model_copy(update={"path": f"{tmp_path}/copy"}),)})
    assert open_loader(run.model_copy(update={"data": data})).fingerprint() == open_loader(run).fingerprint()


def test_a_tokenizer_larger_than_the_model_is_refused(run):
    small = run.model_copy(update={"model": run.model.model_copy(update={"vocab_size": 399})})
    with pytest.raises(DataError, match=r"more ids than the model[\s\S]*model\.vocab_size=400"):
        open_loader(small)


def test_data_of_another_tokenizer_is_refused(run, documents, tmp_path):
    other = train_tokenizer(documents, tmp_path / "other.model", vocab_size=390)
    data = run.data.model_copy(update={"tokenizer": str(other.path)})
    with pytest.raises(DataError, match="another tokenizer"):
        open_loader(run.model_copy(update={"data": data}))


def test_ordinals_far_into_a_run_are_reached_at_once(loader):
    batch = loader.batch(10**12, sequences=4)
    assert np.array_equal(batch.numpy(), loader.batch(10**12 - 2, sequences=6)[2:].numpy())


def test_a_file_changed_after_its_check_is_refused(run, dataset, tmp_path):
    for file in dataset.parent.iterdir():
        shutil.copy(file, tmp_path)
    path = tmp_path / f"{dataset.name}.bin"
    raw = bytearray(path.read_bytes())
    raw[1000:1064] = b"\xff" * 64
    path.write_bytes(raw)
    source = run.data.train[0].model_copy(update={"path": str(tmp_path / dataset.name)})
    changed = run.model_copy(update={"data": run.data.model_copy(update={"train": (source,)})})
    with pytest.raises(DataError, match="the file was changed"):
        open_loader(changed).batch(0, sequences=1000)
