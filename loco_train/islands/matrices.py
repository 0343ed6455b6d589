"""The logical matrices of an island: gathered over its ranks, each computed once, and sent back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from loco_train.blocks import block_of
from loco_train.checkpoint.assemble import piece_view
from loco_train.config.schema import ModelConfig
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
    def transform(self, flat: Tensor, function: Callable[[Tensor], Tensor]) -> None:
        """Replace every logical matrix by function(matrix), in place. flat: [views.owned.numel]."""
        sent = [self._between(self._rank, other) for other in range(self._ranks)]
        taken = [self._between(other, self._rank) for other in range(self._ranks)]
        pieces = [flat[p.first : p.end] for parts in sent for p in parts]
        arrived = self._swap(pieces, sizes_out=list(map(_size, sent)), sizes_in=list(map(_size, taken)), like=flat)
        elements = dict(zip((p for parts in taken for p in parts), _split(arrived, taken), strict=True))
        for name, weight in self._weights.items():
            if self._computed_by[name] == self._rank:
                self._compute(weight, {p: elements[p] for p in self._parts[name]}, function)
        back = self._swap([arrived], sizes_out=list(map(_size, taken)), sizes_in=list(map(_size, sent)), like=flat)
        for part, values in zip((p for parts in sent for p in parts), _split(back, sent), strict=True):
            flat[part.first : part.end].copy_(values)

    def _between(self, holder: int, computer: int) -> list[_Part]:
        """What `holder` has of the matrices that `computer` computes, in the order in which it travels."""
        mine = [name for name in self._weights if self._computed_by[name] == computer]
        return [part for name in mine for part in self._parts[name] if part.rank == holder]

    def _compute(self, weight: Weight, elements: dict[_Part, Tensor], function: Callable[[Tensor], Tensor]) -> None:
        whole = next(iter(elements.values())).new_empty(weight.shape)
        partitions = dict.fromkeys(part.shard.partition for part in elements)
        for partition in partitions:
            view = piece_view(whole, partition)
            view.copy_(torch.cat(_in_order(elements, partition)).view(view.shape))
        weight.replace(whole, function)
        for partition in partitions:
            piece = piece_view(whole, partition).reshape(-1)
            for part, values in elements.items():
                if part.shard.partition == partition:
                    values.copy_(piece[part.shard.start : part.shard.start + part.shard.length])

    def _swap(self, pieces: list[Tensor], *, sizes_out: list[int], sizes_in: list[int], like: Tensor) -> Tensor:
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


def _size(parts: list[_Part]) -> int:
    return sum(part.shard.length for part in parts)


def _split(values: Tensor, parts: list[list[_Part]]) -> tuple[Tensor, ...]:
    return torch.split(values, [part.shard.length for each in parts for part in each])
