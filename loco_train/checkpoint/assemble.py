"""Whole logical parameters from the files of one island's ranks, one parameter at a time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from loco_train.checkpoint.read import Checkpoint
from loco_train.errors import CheckpointError
from loco_train.shards import Partition, Shard


class LogicalParameters(Protocol):
    """Whole parameters by name, in the order of the model; `read` gives fp32 on the CPU."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def read(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class _Held:
    """A shard and the rank whose file holds it."""

    rank: int
    shard: Shard


class IslandParameters:
    """The logical parameters of one checkpoint of one island.

    Args:
        kind: which tensors: "master" (the parameters), "base", "momentum", "exp_avg" or "exp_avg_sq".

    Raises:
        CheckpointError: the owned shards do not cover each parameter exactly once.
    """

    def __init__(self, checkpoint: Checkpoint, *, kind: str = "master") -> None:
        self.checkpoint = checkpoint
        self.kind = kind
        self._held = _by_name(checkpoint)
        self._files: dict[int, Any] = {}
        for name, held in self._held.items():
            _check_coverage(name, [h for h in held if h.shard.owner])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter, vocabulary padding included; embedding first, layers in order."""
        return {name: held[0].shard.shape for name, held in self._held.items()}

    def read(self, name: str) -> Tensor:
        """The whole parameter, fp32.

        Raises:
            CheckpointError: the copies of a parameter that tensor parallel ranks replicate (norm gains) differ.
                Averaging them would hide that the ranks went apart. The second copy of a tied weight is not compared:
                inside a round it may differ in the last bits, and the owner's counts.
        """
        held = self._held[name]
        whole = torch.empty(held[0].shard.shape, dtype=torch.float32)
        for partition, owners in _pieces([h for h in held if h.shard.owner]).items():
            flat = torch.cat([self._load(h) for h in owners])
            piece_view(whole, partition).copy_(flat.view(piece_view(whole, partition).shape))
        if self.kind not in ("base", "momentum"):
            for copy in (h for h in held if not h.shard.owner and h.shard.partition.dim is None):
                self._check_copy(whole, copy)
        return whole

    def _load(self, held: _Held) -> Tensor:
        if held.rank not in self._files:
            path = self.checkpoint.path(self.checkpoint.manifest.ranks[held.rank])
            self._files[held.rank] = safe_open(path, framework="pt")
        key = f"{self.kind}/{held.shard.name}"
        try:
            tensor: Tensor = self._files[held.rank].get_tensor(key)
        except Exception as error:
            raise CheckpointError(f"{self.checkpoint.folder}: rank {held.rank} has no tensor {key}") from error
        if tensor.numel() != held.shard.length:
            raise CheckpointError(
                f"{self.checkpoint.folder}: {key} of rank {held.rank} does not fit its shard",
                got=tensor.numel(),
                allowed=held.shard.length,
            )
        return tensor.float()

    def _check_copy(self, whole: Tensor, held: _Held) -> None:
        shard = held.shard
        piece = piece_view(whole, shard.partition).reshape(-1)
        if not torch.equal(piece[shard.start : shard.start + shard.length], self._load(held)):
            copy = f"copy of {self.kind}/{shard.name} on rank {held.rank}"
            raise CheckpointError(
                f"{self.checkpoint.folder}: the {copy} differs from its owner's",
                fix="the ranks went apart while training; use an older checkpoint",
            )


def piece_view(whole: Tensor, partition: Partition) -> Tensor:
    """The elements of a logical parameter that belong to a tensor-parallel piece, as a view.

    Along the cut dimension the view has two dimensions, [blocks, rows of a piece in a block]; flattened, the view is
    the piece as a rank has it: its part of each fused block, one after the other.
    """
    if partition.dim is None:
        return whole
    rows = whole.shape[partition.dim] // (partition.blocks * partition.count)
    before, after = whole.shape[: partition.dim], whole.shape[partition.dim + 1 :]
    split = whole.view(*before, partition.blocks, partition.count, rows, *after)
    return split.select(partition.dim + 1, partition.index)


def _by_name(checkpoint: Checkpoint) -> dict[str, list[_Held]]:
    held: dict[str, list[_Held]] = defaultdict(list)
    for record in checkpoint.manifest.ranks:
        for shard in record.shards:
            held[shard.name].append(_Held(record.rank, shard))
    return {name: held[name] for name in sorted(held, key=_model_order)}


def _model_order(name: str) -> tuple[int, int]:
    """Embedding, layers by number, the rest of the decoder, output layer; inside a layer, the order of the ranks."""
    parts = name.split(".")
    if parts[0] == "embedding":
        return (0, 0)
    if parts[:2] == ["decoder", "layers"]:
        return (1, int(parts[2]))
    return (2 if parts[0] == "decoder" else 3, 0)


def _pieces(owners: Sequence[_Held]) -> dict[Partition, list[_Held]]:
    """Owned shards by tensor-parallel piece, each in the order of the elements."""
    pieces: dict[Partition, list[_Held]] = defaultdict(list)
    for held in sorted(owners, key=lambda h: (h.shard.partition.index, h.shard.start)):
        pieces[held.shard.partition].append(held)
    return pieces


def _check_coverage(name: str, owners: Sequence[_Held]) -> None:
    if not owners:
        raise CheckpointError(f"no rank owns {name}")
    pieces = _pieces(owners)
    first = owners[0].shard
    expected = [
        Partition(first.partition.dim, first.partition.blocks, index, first.partition.count)
        for index in range(first.partition.count)
    ]
    if list(pieces) != expected or len({held.shard.shape for held in owners}) != 1:
        raise CheckpointError(f"the pieces of {name} do not fit each other", got=list(pieces), allowed=expected)
    for partition, shards in pieces.items():
        for problem in _gaps_and_overlaps([held.shard for held in shards]):
            raise CheckpointError(f"piece {partition.index} of {name}: {problem}")


def _gaps_and_overlaps(shards: Sequence[Shard]) -> Iterator[str]:
    end = 0
    for shard in shards:
        if shard.start > end:
            yield f"elements {end} to {shard.start} are missing"
        elif shard.start < end:
            yield f"elements {shard.start} to {end} are there twice"
        end = shard.start + shard.length
    numel = math.prod(shards[0].piece_shape)
    if end != numel:
        yield f"covered up to element {end} of {numel}"
