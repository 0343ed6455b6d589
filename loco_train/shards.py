"""Which part of which logical parameter a rank holds: the vocabulary of views, checkpoints and conversion.

A logical parameter is whole over tensor parallelism and ZeRO, under its Megatron-core GPTModel name
(`decoder.layers.3.mlp.linear_fc1.weight`). Tensor parallelism cuts it into pieces (`Partition`); ZeRO cuts the
flattened piece into ranges (`Shard`). The outer code sees a rank's owned shards in one flat buffer (`FlatLayout`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# Offsets in flat buffers are multiples of this many elements: 512 bytes of fp32, so that every shard starts on a
# 128-bit boundary in fp32, bf16 and int8 and on a quantisation group of 128.
ALIGNMENT = 128


@dataclass(frozen=True)
class Partition:
    """How tensor parallelism cuts a logical parameter, and which piece this is.

    dim: the dimension that is cut; None where every rank has the whole parameter (norm gains).
    blocks: fused blocks along `dim`, each cut by itself (gate and up in one weight: 2).
    index, count: this piece, and into how many the parameter is cut (1 where it is replicated).
    """

    dim: int | None = None
    blocks: int = 1
    index: int = 0
    count: int = 1


@dataclass(frozen=True)
class Shard:
    """The range of a logical parameter that one rank holds as an fp32 master.

    shape: of the logical parameter, vocabulary padding included.
    start, length: elements in the flattened tensor-parallel piece.
    owner: whether this copy is the one that is exchanged, counted and exported. Replicas over tensor parallel ranks
        and the second copy of a tied weight under pipelining are not.
    """

    name: str
    shape: tuple[int, ...]
    partition: Partition
    start: int
    length: int
    owner: bool = True

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """Shape of the tensor-parallel piece."""
        if self.partition.dim is None:
            return self.shape
        cut = list(self.shape)
        cut[self.partition.dim] //= self.partition.count
        return tuple(cut)

    def place(self, element: Any) -> Any:
        """Of an element of the flattened tensor-parallel piece (int, or an int64 tensor of them), its place in the
        flattened logical parameter."""
        cut = self.partition
        if cut.dim is None:
            return element
        inner = math.prod(self.shape[cut.dim + 1 :])
        rows, piece_rows = self.shape[cut.dim], self.piece_shape[cut.dim]
        block_rows = piece_rows // cut.blocks
        before, row, after = element // inner // piece_rows, element // inner % piece_rows, element % inner
        block, within = row // block_rows, row % block_rows
        return (before * rows + (block * cut.count + cut.index) * block_rows + within) * inner + after

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Shard:
        fields = dict(data, shape=tuple(data["shape"]), partition=Partition(**data["partition"]))
        return Shard(**fields)


@dataclass(frozen=True)
class FlatLayout:
    """Shards laid one after the other in one flat buffer, each at a multiple of `ALIGNMENT` elements."""

    shards: tuple[Shard, ...]
    offsets: tuple[int, ...]
    numel: int

    @staticmethod
    def of(shards: tuple[Shard, ...]) -> FlatLayout:
        offsets, end = [], 0
        for shard in shards:
            offsets.append(end)
            end += math.ceil(shard.length / ALIGNMENT) * ALIGNMENT
        return FlatLayout(shards, tuple(offsets), end)

    def ranges(self) -> list[tuple[Shard, int, int]]:
        """(shard, first element, one past the last) for each shard, padding excluded."""
        return [(s, o, o + s.length) for s, o in zip(self.shards, self.offsets, strict=True)]

    def joined(self, chosen: Callable[[Shard], bool]) -> tuple[tuple[int, int], ...]:
        """[first, end) of the chosen shards; neighbours are one range, with the padding between them."""
        found: list[tuple[int, int]] = []
        joins = False
        for shard, first, end in self.ranges():
            if taken := chosen(shard):
                begin = found.pop()[0] if joins else first
                found.append((begin, end))
            joins = taken
        return tuple(found)

    @property
    def parameters(self) -> int:
        """Elements that are parameters (padding excluded)."""
        return sum(s.length for s in self.shards)
