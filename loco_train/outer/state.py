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
        saved: mix1 depends on what is saved alone, and is done again on resume.
    sent: what this island sent behind the current round, where that does not follow from base and momentum.
    each: [M, numel], where every island's contribution arrives, for aggregators that need it. Not saved.
    """

    base: Tensor
    momentum: Tensor
    mixed: Tensor | None = None
    mixed_momentum: Tensor | None = None
    sent: Tensor | None = None
    each: Tensor | None = None

    @staticmethod
    def zeros(
        numel: int,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        mixed: bool = False,
        mixed_momentum: bool = False,
        sent: bool = False,
        each: int = 0,
    ) -> OuterState:
        """All zero, so that padding is finite and equal everywhere; on the host pinned where there is CUDA.

        each: M, for aggregators that need every island's contribution, else 0.
        """
        pin = device.type == "cpu" and torch.cuda.is_available()

        def buffer(*rows: int) -> Tensor:
            return torch.zeros(*rows, numel, dtype=dtype, device=device, pin_memory=pin)

        return OuterState(
            base=buffer(),
            momentum=buffer(),
            mixed=buffer() if mixed else None,
            mixed_momentum=buffer() if mixed_momentum else None,
            sent=buffer() if sent else None,
            each=buffer(each) if each else None,
        )

    def tensors(self, layout: FlatLayout) -> dict[str, Tensor]:
        """Live views by checkpoint key: `base/{name}`, `momentum/{name}`, and `sent/{name}` where there is one, of
        each owned shard."""
        saved = {"base": self.base, "momentum": self.momentum, "sent": self.sent}
        return {
            f"{kind}/{shard.name}": buffer[first:end]
            for shard, first, end in layout.ranges()
            for kind, buffer in saved.items()
            if buffer is not None
        }
