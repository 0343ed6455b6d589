"""The outer optimizer's state on one rank: base and momentum of the shards it owns, 8 bytes a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.shards import FlatLayout


@dataclass(frozen=True)
class OuterState:
    """Flat buffers [layout.numel], fp32 (fp64 in oracles), changed in place by the outer step only.

    base: the point the next outer update is applied to; between rounds the start.
    momentum: the outer optimizer's buffer.
    mixed, mixed_momentum: where mix1 of the current round arrives, for methods that have one. Not part of what is
        saved: mix1 depends on base and momentum alone, and is done again on resume.
    """

    base: Tensor
    momentum: Tensor
    mixed: Tensor | None = None
    mixed_momentum: Tensor | None = None

    @staticmethod
    def zeros(
        numel: int,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        mixed: bool = False,
        mixed_momentum: bool = False,
    ) -> OuterState:
        """All zero, so that padding is finite and equal everywhere; on the host pinned where there is CUDA."""
        pin = device.type == "cpu" and torch.cuda.is_available()

        def buffer() -> Tensor:
            return torch.zeros(numel, dtype=dtype, device=device, pin_memory=pin)

        return OuterState(buffer(), buffer(), buffer() if mixed else None, buffer() if mixed_momentum else None)

    def tensors(self, layout: FlatLayout) -> dict[str, Tensor]:
        """Live views by checkpoint key: `base/{name}` and `momentum/{name}` of each owned shard."""
        views: dict[str, Tensor] = {}
        for shard, first, end in layout.ranges():
            views[f"base/{shard.name}"] = self.base[first:end]
            views[f"momentum/{shard.name}"] = self.momentum[first:end]
        return views
