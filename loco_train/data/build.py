"""Documents to a Megatron indexed dataset: `<prefix>.bin`, `<prefix>.idx` and a card."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loco_train.data.card import DatasetCard, card_path, remove_dataset_names
from loco_train.data.files import remove_temporary, write_errors
from loco_train.data.megatron import bin_path, idx_path, indexed_dataset
from loco_train.data.tokenizer import Tokenizer
from loco_train.errors import DataError
from loco_train.files import flush_to_disk, hash_file, temporary_sibling

# Enough for every thread to have many documents, little enough to stay small in memory.
_BATCH_CHARACTERS = 2**22


@dataclass(frozen=True)
class _Counts:
    documents: int
    tokens: int
    largest_id: int


def build_dataset(
    documents: Iterable[str],
    prefix: Path,
    tokenizer: Tokenizer,
    *,
    append_eos: bool = True,
    overwrite: bool = False,
    threads: int | None = None,
    on_document: Callable[[int], None] | None = None,
) -> DatasetCard:
    """Tokenize `documents` into the dataset `prefix`, as Megatron-LM's preprocess_data would.

    Tokens are uint16 where the vocabulary has under 65500 ids, else int32. Everything is written under temporary
    names; the index, without which there is no dataset, gets its name last.

    Args:
        append_eos: end each document with the tokenizer's end-of-text token.
        overwrite: replace a dataset of that name.
        threads: of the tokenizer; None: one a core.
        on_document: is told the number of documents so far.

    Raises:
        DataError: the dataset exists, there is no text, or the files cannot be written.
    """
    if idx_path(prefix).exists() and not overwrite:
        raise DataError(f"there is a dataset {prefix} already", fix="choose another name, or pass --overwrite")
    parts = {path: temporary_sibling(path) for path in (bin_path(prefix), card_path(prefix), idx_path(prefix))}
    try:
        with write_errors(prefix):
            prefix.parent.mkdir(parents=True, exist_ok=True)
        encoded = _encode(documents, tokenizer, append_eos=append_eos, threads=threads or os.cpu_count() or 1)
        counts = _write(encoded, parts, prefix, vocab_size=tokenizer.vocab_size, on_document=on_document)
        with write_errors(prefix):
            card = _card(counts, tokenizer, bin_file=parts[bin_path(prefix)], idx_file=parts[idx_path(prefix)])
            card.save(parts[card_path(prefix)])
            _publish(parts, prefix)
    finally:
        for temporary in parts.values():
            remove_temporary(temporary)
    return card


def _encode(
    documents: Iterable[str], tokenizer: Tokenizer, *, append_eos: bool, threads: int
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    end = [tokenizer.eos] if append_eos else []
    for batch in _batches(documents):
        for ids in tokenizer.encode_all(batch, threads=threads):
            yield np.array(ids + end, dtype=np.int64)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _write(
    encoded: Iterable[np.ndarray[tuple[int], np.dtype[np.int64]]],
    parts: dict[Path, Path],
    prefix: Path,
    *,
    vocab_size: int,
    on_document: Callable[[int], None] | None,
) -> _Counts:
    module = indexed_dataset()
    with write_errors(prefix):
        bin_file = str(parts[bin_path(prefix)])
        builder = module.IndexedDatasetBuilder(bin_file, dtype=module.DType.optimal_dtype(vocab_size))
    count = tokens = largest = 0
    try:
        for ids in encoded:
            with write_errors(prefix):
                builder.add_document(ids, [len(ids)])
            count, tokens, largest = count + 1, tokens + len(ids), max(largest, int(ids.max(initial=0)))
            if on_document:
                on_document(count)
        if not tokens:
            raise DataError(f"no text for the dataset {prefix}", fix="check the input files")
        with write_errors(prefix):
            builder.finalize(str(parts[idx_path(prefix)]))
    finally:
        with write_errors(prefix):  # closing writes what is still buffered
            builder.data_file.close()
    return _Counts(count, tokens, largest)


def _card(counts: _Counts, tokenizer: Tokenizer, *, bin_file: Path, idx_file: Path) -> DatasetCard:
    return DatasetCard(
        documents=counts.documents,
        tokens=counts.tokens,
        largest_id=counts.largest_id,
        bin_bytes=bin_file.stat().st_size,
        bin_sha256=hash_file(bin_file),
        idx_sha256=hash_file(idx_file),
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
    )


def _publish(parts: dict[Path, Path], prefix: Path) -> None:
    """Rename, the index last. An older dataset's index goes first: it must never stand beside the new tokens."""
    for temporary in parts.values():
        flush_to_disk(temporary)
    remove_dataset_names(prefix)
    for target, temporary in parts.items():
        os.replace(temporary, target)
    flush_to_disk(prefix.parent)
