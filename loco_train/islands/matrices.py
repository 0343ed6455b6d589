"""The logical matrices of an island: gathered over its ranks, each computed once, and sent back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from loco_train.blocks import block_of
from loco_train.checkpoint.assemble import piece_view
from loco_train.config.model import ModelConfig
from loco_train.conversion.weight_map import Weight, weights_of
from loco_train.islands.views import ParameterViews
from loco_train.shards import Shard


@dataclass(frozen=True)
class _Part:
    """Elements of a parameter in one rank's flat buffer [first, end)."""

    rank: int
    shard: Shard
    first: int
    end: int


class IslandMatrices:
    """See `loco_train.outer.aggregators.Matrices`. Every rank makes the same plan from the shards of all."""

    def __init__(self, model: ModelConfig, views: ParameterViews, *, embeddings: bool = True) -> None:
        """embeddings: whether embedding and head count as matrices. Collective over the island."""
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._device = views.device
        self._weights = {w.name: w for w in weights_of(model) if len(w.shape) == 2 and (embeddings or _is_inner(w))}
        held: list[list[_Part]] = [[]] * self._ranks
        dist.all_gather_object(
            held,
            [_Part(self._rank, s, a, b) for s, a, b in views.owned.ranges() if s.name in self._weights],
        )
        self._parts: dict[str, list[_Part]] = {name: [] for name in self._weights}
        for part in (part for parts in held for part in parts):
            self._parts[part.shard.name].append(part)
        self._computed_by = _spread_by_cost(list(self._weights.values()), self._ranks)

    @torch.no_grad()
    def merge(self, stack: Tensor, function: Callable[[Tensor], Tensor], *, out: Tensor) -> None:
        """See `Matrices`. stack: [K, views.owned.numel]."""
        depth = len(stack)
        sent = [self._between(self._rank, other) for other in range(self._ranks)]
        taken = [self._between(other, self._rank) for other in range(self._ranks)]
        pieces = [stack[:, p.first : p.end].flatten() for parts in sent for p in parts]
        arrived = self._swap(pieces, _sizes(sent, depth), _sizes(taken, depth), like=stack)
        each = torch.split(arrived, [depth * size for parts in taken for size in map(_length, parts)])
        elements = {p: values.view(depth, -1) for p, values in zip(_flat(taken), each, strict=True)}
        results: dict[_Part, Tensor] = {}
        for name, weight in self._weights.items():
            if self._computed_by[name] == self._rank:
                results |= self._compute(weight, {p: elements[p] for p in self._parts[name]}, function)
        back = self._swap([results[p] for p in _flat(taken)], _sizes(taken, 1), _sizes(sent, 1), like=stack)
        values = torch.split(back, list(map(_length, _flat(sent))))
        for part, merged in zip(_flat(sent), values, strict=True):
            out[part.first : part.end].copy_(merged)

    def _between(self, holder: int, computer: int) -> list[_Part]:
        """What `holder` has of the matrices that `computer` computes, in the order in which it travels."""
        mine = [name for name in self._weights if self._computed_by[name] == computer]
        return [part for name in mine for part in self._parts[name] if part.rank == holder]

    def _compute(
        self, weight: Weight, elements: dict[_Part, Tensor], function: Callable[[Tensor], Tensor]
    ) -> dict[_Part, Tensor]:
        """The merged parameter's elements, from those of each of the stack's, [K, length] by part."""
        some = next(iter(elements.values()))
        wholes = some.new_empty(len(some), *weight.shape)
        partitions = dict.fromkeys(part.shard.partition for part in elements)
        for partition in partitions:
            pieces = torch.cat(_in_order(elements, partition), dim=1)
            for whole, piece in zip(wholes, pieces, strict=True):
                view = piece_view(whole, partition)
                view.copy_(piece.view(view.shape))
        merged = weight.merge(wholes, function)
        pieces_of = {partition: piece_view(merged, partition).reshape(-1) for partition in partitions}
        return {
            part: pieces_of[part.shard.partition][part.shard.start : part.shard.start + part.shard.length]
            for part in elements
        }

    def _swap(self, pieces: list[Tensor], sizes_out: list[int], sizes_in: list[int], *, like: Tensor) -> Tensor:
        if self._ranks == 1:
            return torch.cat(pieces) if pieces else like.new_zeros(0)
        out = torch.cat([p.to(self._device) for p in pieces]) if pieces else like.new_zeros(0, device=self._device)
        arrived = out.new_empty(sum(sizes_in))
        dist.all_to_all_single(arrived, out, sizes_in, sizes_out)
        return arrived


def _is_inner(weight: Weight) -> bool:
    return block_of(weight.name) not in ("embedding", "head")


def _spread_by_cost(weights: list[Weight], ranks: int) -> dict[str, int]:
    """Which rank computes which parameter: the dearest first, each to the rank with the least so far."""
    load = [0] * ranks
    computed_by = {}
    for weight in sorted(weights, key=lambda w: (-_cost(w), w.name)):
        rank = load.index(min(load))
        load[rank] += _cost(weight)
        computed_by[weight.name] = rank
    return computed_by


def _cost(weight: Weight) -> int:
    """Of an SVD or of Newton-Schulz, up to a factor: m n min(m, n) of each matrix in the parameter."""
    return sum(rows * columns * min(rows, columns) for rows, columns in weight.foreign_shapes().values())


def _in_order(elements: dict[_Part, Tensor], partition: object) -> list[Tensor]:
    own = [part for part in elements if part.shard.partition == partition]
    return [elements[part] for part in sorted(own, key=lambda part: part.shard.start)]


def _flat(parts: list[list[_Part]]) -> list[_Part]:
    return [part for each in parts for part in each]


def _length(part: _Part) -> int:
    return part.shard.length


def _sizes(parts: list[list[_Part]], depth: int) -> list[int]:
    """Elements for each rank, of `depth` matrices in the place of one."""
    return [depth * sum(map(_length, each)) for each in parts]
