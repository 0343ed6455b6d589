"""Indexed datasets as samples: the documents of a split, end to end, cut into overlapping sequences."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loco_train.data.card import DatasetCard, card_path, load_card, remember
from loco_train.data.megatron import bin_path, idx_path, indexed_dataset
from loco_train.data.tokenizer import Tokenizer
from loco_train.errors import DataError
from loco_train.files import hash_file

_SCAN_TOKENS = 2**24
_INDEX_HEADER = struct.Struct("<9sQBQQ")


class TokenDataset:
    """A Megatron indexed dataset, checked and memory-mapped; read through Megatron-core's own class.

    Args:
        prefix: `<prefix>.bin` and `<prefix>.idx`, made by `loco data build` or by Megatron-LM's preprocess_data.
        tokenizer: the one that the data must have been made with, where its card says so.
        vocab_size: ids of the model; every id in the data must be below this and the tokenizer's size.

    Raises:
        DataError: files that are missing, cut off or damaged, another tokenizer's, or ids beyond the vocabulary.
    """

    def __init__(self, prefix: Path, *, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.prefix = prefix
        self._data = _open(prefix)
        # Document d is the tokens [starts[d], starts[d + 1]); Megatron's documents may hold several sequences.
        self._document_starts = _document_starts(self._data, prefix=prefix)
        self.documents = len(self._document_starts) - 1
        self.tokens = int(self._document_starts[-1])
        self.card = self._find_card()
        self._check_tokenizer(tokenizer)
        _check_ids(self.card.largest_id, prefix=prefix, vocab_size=min(vocab_size, tokenizer.vocab_size))

    def token_range(self, first_document: int, stop_document: int) -> tuple[int, int]:
        """First and stop token of a range of documents."""
        return int(self._document_starts[first_document]), int(self._document_starts[stop_document])

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        """Tokens [first, first + count) of all documents end to end, in the file's own integer type."""
        dtype = self._data.index.dtype
        found = self._data.bin_reader.read(dtype=dtype, count=count, offset=first * np.dtype(dtype).itemsize)
        return np.array(found)  # a copy: Megatron's reader unmaps the file when it goes, under any view that is left

    def _find_card(self) -> DatasetCard:
        idx_sha256, size = hash_file(idx_path(self.prefix)), bin_path(self.prefix).stat().st_size
        card = load_card(self.prefix)
        if card and (card.idx_sha256, card.bin_bytes) == (idx_sha256, size):
            return card
        if card and card.tokenizer_sha256:
            raise DataError(
                f"the dataset {self.prefix} is not the one that its card describes",
                fix=f"build it again; or remove {card_path(self.prefix)} to use the files as they are",
            )
        card = self._scan(idx_sha256=idx_sha256, bin_bytes=size)
        remember(self.prefix, card)
        return card

    def _scan(self, *, idx_sha256: str, bin_bytes: int) -> DatasetCard:
        """Read every token of a dataset that was made elsewhere, a piece at a time."""
        largest, smallest = 0, 0
        for first in range(0, self.tokens, _SCAN_TOKENS):
            piece = self.read(first, min(_SCAN_TOKENS, self.tokens - first))
            largest, smallest = max(largest, int(piece.max())), min(smallest, int(piece.min()))
        if smallest < 0:
            raise DataError(f"the dataset {self.prefix} holds a negative token id", got=smallest)
        return DatasetCard(
            documents=self.documents,
            tokens=self.tokens,
            largest_id=largest,
            bin_bytes=bin_bytes,
            bin_sha256=hash_file(bin_path(self.prefix)),
            idx_sha256=idx_sha256,
        )

    def _check_tokenizer(self, tokenizer: Tokenizer) -> None:
        made_with = self.card.tokenizer_sha256
        if made_with and made_with != tokenizer.sha256:
            raise DataError(
                f"the dataset {self.prefix} was made with another tokenizer than {tokenizer.path}",
                got=f"sha256 {tokenizer.sha256[:16]}…",
                allowed=f"sha256 {made_with[:16]}…",
                fix="set data.tokenizer to the tokenizer of the data, or build the data again",
            )


@dataclass(frozen=True)
class DocumentRange:
    """A split: documents [first, stop) of a dataset."""

    first: int
    stop: int


def split_documents(documents: int, *, heldout_fraction: float) -> tuple[DocumentRange, DocumentRange]:
    """Training and held-out documents; held-out are the last `heldout_fraction`, at least one where it is not 0."""
    heldout = round(documents * heldout_fraction)
    if heldout_fraction > 0:
        heldout = min(max(heldout, 1), documents)
    return DocumentRange(0, documents - heldout), DocumentRange(documents - heldout, documents)


class PackedSplit:
    """Samples of a split: sample k is its tokens [k * L, k * L + L + 1), so each token is predicted once.

    Raises:
        DataError: the split has too few tokens for one sample.
    """

    def __init__(self, dataset: TokenDataset, documents: DocumentRange, *, sequence_length: int) -> None:
        self.dataset = dataset
        self.documents = documents
        self.sequence_length = sequence_length
        self._first, stop = dataset.token_range(documents.first, documents.stop)
        self.samples = (stop - self._first - 1) // sequence_length
        if self.samples < 1:
            raise DataError(
                f"too few tokens for one sequence in documents {documents.first} to {documents.stop} "
                f"of the dataset {dataset.prefix}",
                got=f"{stop - self._first} tokens",
                allowed=f"at least batch.sequence_length + 1 = {sequence_length + 1}",
                fix="use more text, a shorter batch.sequence_length or another data.heldout_fraction",
            )

    def sample(self, index: int) -> npt.NDArray[Any]:
        """Tokens of sample `index`, [sequence_length + 1], in the file's own integer type."""
        return self.dataset.read(self._first + index * self.sequence_length, self.sequence_length + 1)


def _open(prefix: Path) -> Any:
    for path in (bin_path(prefix), idx_path(prefix)):
        if not path.is_file():
            raise DataError(f"no such file: {path}", fix="check the path in data, or make it with `loco data build`")
    if not bin_path(prefix).stat().st_size:
        raise DataError(f"{bin_path(prefix)} is empty", fix="build the dataset again")
    _check_index(idx_path(prefix))
    try:
        return indexed_dataset().IndexedDataset(str(prefix))
    except (AssertionError, ValueError, IndexError) as error:
        raise _damaged_index(idx_path(prefix), "its documents do not fit its sequences") from error


def _check_index(path: Path) -> None:
    """Magic, version, token type and size. Megatron's reader asserts the first, and half-made objects print tracebacks.

    The parts are those of Megatron-core's _IndexWriter; multimodal files have a byte more for each sequence.
    """
    with open(path, "rb") as file:
        header = file.read(_INDEX_HEADER.size)
    if len(header) < _INDEX_HEADER.size:
        raise _damaged_index(path, f"{len(header)} bytes")
    magic, version, token_type, sequences, documents = _INDEX_HEADER.unpack(header)
    if magic != b"MMIDIDX\0\0" or version != 1 or not 1 <= token_type <= 8:
        raise _damaged_index(path, f"the header {header[:18]!r}")
    expected = _INDEX_HEADER.size + 12 * sequences + 8 * documents
    size = path.stat().st_size
    if size not in (expected, expected + sequences) or not documents:
        raise _damaged_index(path, f"{size} bytes where the header says {expected}")


def _damaged_index(path: Path, found: str) -> DataError:
    fix = "copy the file again, or build the dataset again"
    return DataError(f"{path} is damaged or no Megatron index", got=found, fix=fix)


def _document_starts(data: Any, *, prefix: Path) -> npt.NDArray[np.int64]:
    """First token of each document, and the number of tokens; checks that the files fit each other."""
    index = data.index
    if not np.issubdtype(index.dtype, np.integer):
        raise DataError(f"the dataset {prefix} does not hold token ids", got=np.dtype(index.dtype).name)
    item_bytes = np.dtype(index.dtype).itemsize
    ends = np.cumsum(index.sequence_lengths, dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    documents = index.document_indices
    fits = (
        np.array_equal(index.sequence_pointers, starts[:-1] * item_bytes)
        and int(documents[0]) == 0
        and bool(np.all(np.diff(documents) >= 0))
    )
    if not fits:
        raise _damaged_index(idx_path(prefix), "documents that do not lie end to end")
    _check_size(bin_path(prefix), expected_bytes=int(starts[-1]) * item_bytes)
    return np.asarray(starts[documents], dtype=np.int64)


def _check_size(path: Path, *, expected_bytes: int) -> None:
    size = path.stat().st_size
    if size != expected_bytes:
        raise DataError(
            f"{path} is {'cut off' if size < expected_bytes else 'longer than its index says'}",
            got=f"{size} bytes",
            allowed=f"{expected_bytes} bytes",
            fix="copy the file again, or build the dataset again",
        )


def _check_ids(largest_id: int, *, prefix: Path, vocab_size: int) -> None:
    if largest_id >= vocab_size:
        raise DataError(
            f"the dataset {prefix} holds a token id beyond the vocabulary",
            got=largest_id,
            allowed=f"0 to {vocab_size - 1}",
            fix="use the tokenizer and the model.vocab_size that the data was made for",
        )
