"""Batches by ordinal: sample n of a run is the same whoever asks for it, and whenever.

A round starts at a cursor and gives each island a contiguous range of ordinals, so what is consumed depends on the
cursor and on who takes part in the round, not on what islands did before. Inside an island, a batch is cut over the
data parallel ranks in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loco_train.config.schema import DataSource, RunConfig
from loco_train.data.dataset import PackedSplit, TokenDataset, split_documents
from loco_train.data.mix import Located, Mix, apportion
from loco_train.data.shuffle import permute
from loco_train.data.tokenizer import Tokenizer
from loco_train.errors import DataError


@dataclass(frozen=True)
class RoundPlan:
    """Which ordinals each island consumes in one round.

    Attributes:
        cursor: first ordinal of the round.
        counts: samples of each island, in the order of the islands (its inner steps times its batch).
    """

    cursor: int
    counts: tuple[int, ...]

    def first(self, island: int) -> int:
        """First ordinal of `island`; it takes `counts[island]` from there."""
        return self.cursor + sum(self.counts[:island])

    @property
    def next_cursor(self) -> int:
        """Where the next round starts."""
        return self.cursor + sum(self.counts)


class Order(Protocol):
    """Which sample of which source each ordinal is."""

    def locate(self, ordinals: npt.NDArray[np.int64]) -> Located: ...


@dataclass(frozen=True)
class TrainingOrder:
    """Endless: sources mixed by weight, each shuffled anew every time it was read through."""

    mix: Mix
    samples: tuple[int, ...]
    seed: int

    def locate(self, ordinals: npt.NDArray[np.int64]) -> Located:
        """Source and sample index of each ordinal."""
        found = self.mix.locate(ordinals)
        samples = np.empty_like(found.position)
        for source in np.unique(found.source):
            epochs, positions = np.divmod(found.position, self.samples[source])
            for epoch in np.unique(epochs[found.source == source]):
                chosen = (found.source == source) & (epochs == epoch)
                size, stream = self.samples[source], int(source)
                samples[chosen] = permute(positions[chosen], size=size, seed=self.seed, stream=stream, epoch=int(epoch))
        return Located(found.source, samples)


@dataclass(frozen=True)
class FixedOrder:
    """Finite: the first `counts[s]` samples of each source s, source after source."""

    counts: tuple[int, ...]

    def locate(self, ordinals: npt.NDArray[np.int64]) -> Located:
        """Source and sample index of each ordinal; DataError beyond the last."""
        ends = np.cumsum(self.counts)
        if ordinals.size and int(ordinals.max()) >= ends[-1]:
            raise DataError("beyond the held-out sequences", got=int(ordinals.max()), allowed=f"0 to {ends[-1] - 1}")
        source = np.searchsorted(ends, ordinals, side="right")
        return Located(source, ordinals - (ends - np.array(self.counts))[source])


class BatchLoader:
    """Samples of several sources in an order, as tensors of ids below `vocab_size`."""

    def __init__(
        self, sources: Sequence[PackedSplit], order: Order, *, vocab_size: int, identity: dict[str, Any]
    ) -> None:
        self._sources = tuple(sources)
        self._order = order
        self._vocab_size = vocab_size
        self._identity = identity
        self.sequence_length = self._sources[0].sequence_length

    def batch(self, first_ordinal: int, *, sequences: int) -> Tensor:
        """Samples [first_ordinal, first_ordinal + sequences): int64 [sequences, sequence_length + 1] on the CPU.

        Raises:
            DataError: an id beyond the vocabulary, in a file that was changed after it was opened or checked.
        """
        found = self._order.locate(np.arange(first_ordinal, first_ordinal + sequences, dtype=np.int64))
        rows = torch.empty(sequences, self.sequence_length + 1, dtype=torch.int64)
        target = rows.numpy()
        for row, (source, sample) in enumerate(zip(found.source, found.position, strict=True)):
            target[row] = self._sources[source].sample(int(sample))
            # On a GPU such an id ends in a device-side assertion that names neither file nor id.
            if target[row].max() >= self._vocab_size or target[row].min() < 0:
                raise _changed_file(self._sources[source], int(sample))
        return rows

    def micro_batches(
        self, first_ordinal: int, *, sequences: int, micro: int, data_index: int, data_count: int
    ) -> list[Tensor]:
        """One data parallel rank's part of the batch [first_ordinal, first_ordinal + sequences), in micro-batches.

        The ranks' parts are contiguous, disjoint and together the batch. Each tensor is int64
        [micro, sequence_length + 1]. Raises ValueError where the batch does not divide.
        """
        share, rest = divmod(sequences, data_count)
        if rest or share % micro:
            raise ValueError(f"{sequences} sequences do not divide into {data_count} ranks x micro-batches of {micro}")
        mine = self.batch(first_ordinal + data_index * share, sequences=share)
        return list(torch.split(mine, micro))

    def fingerprint(self) -> dict[str, Any]:
        """A JSON document of all that decides which tokens an ordinal stands for; equal on islands that fit."""
        return self._identity


def open_loader(config: RunConfig) -> BatchLoader:
    """The training samples of a run.

    Raises:
        DataError: files that are missing, damaged, too short, or do not fit the tokenizer or the model.
    """
    tokenizer = _open_tokenizer(config)
    fraction = 0.0 if config.data.heldout else config.data.heldout_fraction
    splits = []
    for dataset in _open_all(config.data.train, config, tokenizer=tokenizer):
        documents, _ = split_documents(dataset.documents, heldout_fraction=fraction)
        splits.append(PackedSplit(dataset, documents, sequence_length=config.batch.sequence_length))
    mix = Mix([source.weight for source in config.data.train], seed=config.seed)
    order = TrainingOrder(mix, tuple(split.samples for split in splits), config.seed)
    identity = _identity(config, splits, config.data.train, tokenizer=tokenizer)
    vocab_size = tokenizer.vocab_size
    return BatchLoader(splits, order, vocab_size=vocab_size, identity={**identity, "seed": config.seed})


def open_heldout(config: RunConfig, sequences: int) -> BatchLoader:
    """The first `sequences` held-out samples, shared among the sources by weight; ordinals 0 to `sequences` - 1.

    Raises:
        DataError: as `open_loader`, or there are too few held-out samples; says how many there are.
    """
    tokenizer = _open_tokenizer(config)
    sources = config.data.heldout or config.data.train
    fraction = 1.0 if config.data.heldout else config.data.heldout_fraction
    if fraction == 0:
        fix = "set data.heldout_fraction above 0, or name datasets in data.heldout"
        raise DataError("the run has no held-out data", fix=fix)
    splits = []
    for dataset in _open_all(sources, config, tokenizer=tokenizer):
        _, documents = split_documents(dataset.documents, heldout_fraction=fraction)
        splits.append(PackedSplit(dataset, documents, sequence_length=config.batch.sequence_length))
    counts = apportion([source.weight for source in sources], total=sequences)
    for split, count in zip(splits, counts, strict=True):
        _check_enough(split, count)
    identity = _identity(config, splits, sources, tokenizer=tokenizer)
    return BatchLoader(splits, FixedOrder(counts), vocab_size=tokenizer.vocab_size, identity=identity)


def _changed_file(split: PackedSplit, sample: int) -> DataError:
    return DataError(
        f"sample {sample} of the dataset {split.dataset.prefix} holds an id beyond the vocabulary, though its check "
        "found none: the file was changed",
        fix="build the dataset again, or copy it again",
    )


def _check_enough(split: PackedSplit, count: int) -> None:
    if split.samples < count:
        raise DataError(
            f"too few held-out sequences in the dataset {split.dataset.prefix}",
            got=f"{split.samples} sequences of {split.sequence_length} tokens",
            allowed=f"at least {count}",
            fix=f"set evaluation.sequences or health.sequences lower (this source has {split.samples}), or raise "
            "data.heldout_fraction",
        )


def _open_tokenizer(config: RunConfig) -> Tokenizer:
    tokenizer = Tokenizer(config.data.tokenizer)
    if tokenizer.vocab_size > config.model.vocab_size:
        raise DataError(
            f"the tokenizer {tokenizer.path} has more ids than the model",
            got=f"{tokenizer.vocab_size} ids, model.vocab_size {config.model.vocab_size}",
            fix=f"set model.vocab_size={tokenizer.vocab_size}",
        )
    return tokenizer


def _open_all(sources: Sequence[DataSource], config: RunConfig, *, tokenizer: Tokenizer) -> list[TokenDataset]:
    return [
        TokenDataset(Path(source.path), tokenizer=tokenizer, vocab_size=config.model.vocab_size) for source in sources
    ]


def _identity(
    config: RunConfig, splits: Sequence[PackedSplit], sources: Sequence[DataSource], *, tokenizer: Tokenizer
) -> dict[str, Any]:
    described = {
        str(number): {
            "sha256": split.dataset.card.bin_sha256,
            "index_sha256": split.dataset.card.idx_sha256,
            "weight": source.weight,
            "first_document": split.documents.first,
            "stop_document": split.documents.stop,
        }
        for number, (split, source) in enumerate(zip(splits, sources, strict=True))
    }
    return {"tokenizer": tokenizer.sha256, "sequence_length": config.batch.sequence_length, "sources": described}
