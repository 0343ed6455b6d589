import json
import shutil

import numpy as np
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

from loco_train.data.card import card_path, load_card
from loco_train.data.dataset import DocumentRange, PackedSplit, TokenDataset, split_documents
from loco_train.data.tokenizer import train_tokenizer
from loco_train.errors import DataError


def _copy(dataset, folder):
    for file in dataset.parent.iterdir():
        shutil.copy(file, folder)
    return folder / dataset.name


def _read_whole(prefix):
    """All tokens and the documents' lengths, copied: Megatron's views die with its dataset."""
    data = IndexedDataset(str(prefix))
    return np.concatenate(data[:]), data.sequence_lengths.copy()


def _by_megatron(prefix, documents, dtype=np.int32):
    """As Megatron-LM's preprocess_data writes it: no card; a document may hold several sequences."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for sequences in documents:
        for sequence in sequences:
            builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return prefix


def test_samples_are_the_documents_end_to_end(dataset, tokenizer):
    everything, _ = _read_whole(dataset)
    data = TokenDataset(dataset, tokenizer=tokenizer, vocab_size=400)
    assert (data.documents, data.tokens) == (200, len(everything))
    split = PackedSplit(data, DocumentRange(0, data.documents), sequence_length=64)
    assert split.samples == (len(everything) - 1) // 64
    for index in range(split.samples):
        assert split.sample(index).tolist() == everything[index * 64 : index * 64 + 65].tolist()


def test_training_and_heldout_share_no_token(dataset, tokenizer):
    data = TokenDataset(dataset, tokenizer=tokenizer, vocab_size=400)
    train, heldout = split_documents(data.documents, heldout_fraction=0.1)
    assert (train, heldout) == (DocumentRange(0, 180), DocumentRange(180, 200))
    _, lengths = _read_whole(dataset)
    boundary = int(lengths[:180].sum())
    assert data.token_range(train.first, train.stop) == (0, boundary)
    assert data.token_range(heldout.first, heldout.stop) == (boundary, data.tokens)
    last = PackedSplit(data, train, sequence_length=1).samples - 1  # of length 1: no token is left over
    assert PackedSplit(data, train, sequence_length=1).sample(last).tolist() == data.read(boundary - 2, 2).tolist()
    assert PackedSplit(data, heldout, sequence_length=8).sample(0).tolist() == data.read(boundary, 9).tolist()


@pytest.mark.parametrize(
    ("documents", "fraction", "heldout"), [(200, 0.01, 2), (10, 0.01, 1), (10, 0.0, 0), (10, 1.0, 10), (1, 0.5, 1)]
)
def test_split_sizes(documents, fraction, heldout):
    train, held = split_documents(documents, heldout_fraction=fraction)
    assert (train.first, train.stop, held.stop) == (0, held.first, documents)
    assert held.stop - held.first == heldout


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64])
def test_files_made_by_megatron_are_accepted_as_they_are(tokenizer, tmp_path, dtype):
    documents = [[[5, 6], [7]], [[8, 9, 10, 2]], [[11], [12], [2]]]
    prefix = _by_megatron(tmp_path / "d", documents, dtype=dtype)
    data = TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)
    assert (data.documents, data.tokens, data.card.largest_id) == (3, 10, 12)
    assert data.token_range(1, 2) == (3, 7)
    assert data.read(0, 10).tolist() == [5, 6, 7, 8, 9, 10, 2, 11, 12, 2]
    # The scan is remembered, and done again when the files are others.
    assert load_card(prefix) == data.card
    _by_megatron(prefix, [[[30, 31]]], dtype=dtype)
    assert TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400).card.largest_id == 31


def test_an_id_beyond_the_vocabulary_is_refused(dataset, tokenizer, tmp_path):
    prefix = _by_megatron(tmp_path / "d", [[[5, 399]], [[400]]])
    with pytest.raises(DataError, match=r"beyond the vocabulary[\s\S]*got: 400[\s\S]*0 to 399"):
        TokenDataset(prefix, tokenizer=tokenizer, vocab_size=512)
    with pytest.raises(DataError, match=r"beyond the vocabulary[\s\S]*0 to 99"):
        TokenDataset(dataset, tokenizer=tokenizer, vocab_size=100)
    with pytest.raises(DataError, match="negative"):
        TokenDataset(_by_megatron(tmp_path / "n", [[[5, -1]]]), tokenizer=tokenizer, vocab_size=400)


def test_another_tokenizer_is_refused(dataset, documents, tmp_path):
    other = train_tokenizer(documents, tmp_path / "other.model", vocab_size=401)
    with pytest.raises(DataError, match="another tokenizer"):
        TokenDataset(dataset, tokenizer=other, vocab_size=512)


def test_too_few_tokens_are_refused(tokenizer, tmp_path):
    data = TokenDataset(_by_megatron(tmp_path / "d", [[list(range(17))]]), tokenizer=tokenizer, vocab_size=400)
    assert PackedSplit(data, DocumentRange(0, 1), sequence_length=16).samples == 1
    with pytest.raises(DataError, match=r"17 tokens[\s\S]*= 18"):
        PackedSplit(data, DocumentRange(0, 1), sequence_length=17)
    with pytest.raises(DataError, match="0 tokens"):
        PackedSplit(data, DocumentRange(1, 1), sequence_length=16)


@pytest.mark.parametrize("size", [0, 1000, -1])
def test_a_cut_off_bin_is_refused(dataset, tokenizer, tmp_path, size):
    prefix = _copy(dataset, tmp_path)
    path = prefix.with_name(prefix.name + ".bin")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="cut off" if size else "empty"):
        TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)


@pytest.mark.parametrize("size", [0, 5, 20, 40, 1000, -8])
def test_a_cut_off_index_is_refused(dataset, tokenizer, tmp_path, size):
    prefix = _copy(dataset, tmp_path)
    path = prefix.with_name(prefix.name + ".idx")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="damaged or no Megatron index"):
        TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)


def test_an_index_of_other_data_is_refused(dataset, tokenizer, tmp_path):
    prefix = _copy(dataset, tmp_path)
    other = _by_megatron(tmp_path / "other", [[[1, 2, 3]]], dtype=np.uint16)
    shutil.copy(f"{other}.idx", f"{prefix}.idx")
    with pytest.raises(DataError, match="longer than its index says"):
        TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)
    shutil.copy(f"{other}.bin", f"{prefix}.bin")
    with pytest.raises(DataError, match="not the one that its card describes"):
        TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)


def test_a_damaged_card_is_refused(dataset, tokenizer, tmp_path):
    prefix = _copy(dataset, tmp_path)
    for content in ("", "[]", json.dumps({"documents": 3})):
        card_path(prefix).write_text(content)
        with pytest.raises(DataError, match=r"loco\.json is damaged"):
            TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)


def test_missing_files_are_named(dataset, tokenizer, tmp_path):
    prefix = _copy(dataset, tmp_path)
    prefix.with_name(prefix.name + ".idx").unlink()
    with pytest.raises(DataError, match=r"no such file: .*\.idx"):
        TokenDataset(prefix, tokenizer=tokenizer, vocab_size=400)
