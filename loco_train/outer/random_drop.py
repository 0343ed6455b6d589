"""Elements dropped at random, the same ones however the parameters are spread over ranks (DARE, arXiv 2311.03099)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from loco_kernels.random import uniform
from torch import Tensor

from loco_train.outer.draw import Draw
from loco_train.shards import FlatLayout, Shard

_CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True)
class RandomDrop:
    """Sets each element to zero with the given probability and divides the others by 1 - probability.

    Which ones depends on the draw, the island, the parameter's name and the element's place in the logical parameter
    alone: not on tensor parallelism, ZeRO or the device.
    """

    layout: FlatLayout
    probability: float

    def __call__(self, flat: Tensor, draw: Draw, island: int) -> None:
        """Change `flat` [layout.numel] in place."""
        for shard, first, end in self.layout.ranges():
            key = _key(draw, island, shard.name)
            for place, elements in _chunks(shard, flat[first:end]):
                elements.mul_(uniform(place, key) >= self.probability).div_(1 - self.probability)


def _key(draw: Draw, island: int, name: str) -> int:
    text = f"{draw.seed}/{draw.generation}/drop/{draw.round}/{island}/{name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _chunks(shard: Shard, elements: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(places in the flattened logical parameter, elements) by parts, so that the places never fill the memory."""
    for first in range(0, len(elements), _CHUNK_ELEMENTS):
        part = elements[first : first + _CHUNK_ELEMENTS]
        begin = shard.start + first
        yield shard.place(torch.arange(begin, begin + len(part), device=part.device)), part
