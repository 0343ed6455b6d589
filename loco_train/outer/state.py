"""The outer optimizer's state on one rank: base and momentum of the shards it owns, 8 bytes a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.shards import FlatLayout


@dataclass(frozen=True)
class OuterState:
    """Flat buffers [layout.numel], fp32 (fp64 in oracles), changed in place by the outer step only.

    base: the point the next outer update is applied to; between rounds the island's parameters.
    momentum: the outer optimizer's buffer.
    """

    base: Tensor
    momentum: Tensor

    @staticmethod
    def zeros(numel: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> OuterState:
        """Both zero, so that padding is finite and equal everywhere; on the host pinned where there is CUDA."""
        pin = device.type == "cpu" and torch.cuda.is_available()
        base, momentum = (torch.zeros(numel, dtype=dtype, device=device, pin_memory=pin) for _ in range(2))
        return OuterState(base, momentum)

    def tensors(self, layout: FlatLayout) -> dict[str, Tensor]:
        """Live views by checkpoint key: `base/{name}` and `momentum/{name}` of each owned shard."""
        views: dict[str, Tensor] = {}
        for shard, first, end in layout.ranges():
            views[f"base/{shard.name}"] = self.base[first:end]
            views[f"momentum/{shard.name}"] = self.momentum[first:end]
        return views
