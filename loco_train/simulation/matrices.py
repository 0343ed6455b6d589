"""The matrices of a model that lies whole in one flat buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from loco_train.blocks import block_of
from loco_train.shards import FlatLayout


@dataclass(frozen=True)
class WholeMatrices:
    """See `loco_train.outer.aggregators.Matrices`. embeddings: whether embedding and head count as matrices."""

    layout: FlatLayout
    embeddings: bool = True

    def merge(self, stack: Tensor, function: Callable[[Tensor], Tensor], *, out: Tensor) -> None:
        for shard, first, end in self.layout.ranges():
            inner = block_of(shard.name) not in ("embedding", "head")
            if len(shard.shape) == 2 and (self.embeddings or inner):
                out[first:end].view(shard.shape).copy_(function(stack[:, first:end].view(-1, *shard.shape)))
