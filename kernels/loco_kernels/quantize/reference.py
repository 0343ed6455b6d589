"""The plain twin of `quantize` and `dequantize`: whole buffers, in the dtype of the argument."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.random import uniform
from loco_kernels.wire import GROUP, HUGE, SMALLEST, Wire


def quantize(x: Tensor, wire: Wire, key: int | None) -> None:
    if wire.scales is None:
        wire.values[0].copy_(x)
        return
    groups = torch.nn.functional.pad(x, (0, -len(x) % GROUP)).view(-1, GROUP)
    most = groups.abs().amax(1)
    scale = torch.where(most < SMALLEST, 0, (most / wire.largest).float())
    wire.scales[0] = scale = torch.where(most <= HUGE, scale, torch.nan)
    exact = groups / scale[:, None].to(x.dtype)
    places = torch.arange(groups.numel(), device=x.device).view_as(groups)
    rounded = exact.round() if key is None else (exact + uniform(places, key)).floor()
    integers = torch.where(scale[:, None] > 0, rounded, 0).clamp(-wire.largest, wire.largest).char()
    low, high = integers.chunk(2, dim=1)
    stored = integers if wire.kind == "int8" else ((low & 15) | (high << 4)).byte()
    wire.values[0] = stored.flatten()[: wire.values.shape[1]]


def dequantize(wire: Wire, out: Tensor) -> None:
    if wire.scales is None:
        out.copy_(wire.values[0])
        return
    integers = wire.values[0].char()
    if wire.kind == "int4":
        planes = integers.view(-1, GROUP // 2)
        integers = torch.cat([(planes << 4) >> 4, planes >> 4], dim=1).flatten()
    scale = wire.scales[0].to(out.dtype).repeat_interleave(GROUP)
    out.copy_(integers[: len(out)] * scale[: len(out)])
