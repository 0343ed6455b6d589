"""quantize, dequantize on a CPU: chunks that stay in the cache, and two scratch buffers."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.chunks import CHUNK_ELEMENTS, Scratch
from loco_kernels.random import uniform
from loco_kernels.wire import GROUP, HUGE, SMALLEST, Wire


def quantize(x: Tensor, wire: Wire, key: int | None) -> None:
    if wire.scales is None:
        wire.values[0].copy_(x)
        return
    exact, sent = Scratch(len(x), GROUP, like=x), Scratch(len(x), GROUP, like=x)
    for first in range(0, len(x), CHUNK_ELEMENTS):
        chunk = x[first : first + CHUNK_ELEMENTS]
        exact.resized(len(chunk)).copy_(chunk)
        sent.resized(len(chunk))
        encode(exact, sent, wire, first, key)


def dequantize(wire: Wire, out: Tensor) -> None:
    for first in range(0, len(out), CHUNK_ELEMENTS):
        decode(wire, 0, first, out[first : first + CHUNK_ELEMENTS])


def encode(exact: Scratch, sent: Scratch, wire: Wire, first: int, key: int | None) -> None:
    """Write the chunk in `exact` into the wire's integers and scales from element `first` on.

    sent: of the same length; becomes what a receiver reads.
    """
    assert wire.scales is not None, "plain formats are copied"
    values, rounded = exact.padded.view(-1, GROUP), sent.padded.view(-1, GROUP)
    most = torch.abs(values, out=rounded).amax(1)
    scale = (most / wire.largest).masked_fill_(most < SMALLEST, 0).masked_fill_(~(most <= HUGE), torch.nan)
    wire.scales[0, first // GROUP : first // GROUP + len(scale)] = scale
    # Infinite where zeros or NaN are sent: their integers become 0, or NaN, which is 0 in turn.
    divisor = torch.where(scale > 0, scale, torch.inf)
    torch.div(values, divisor[:, None], out=rounded)
    if key is None:
        rounded.round_()
    else:
        places = torch.arange(first, first + rounded.numel(), device=rounded.device)
        rounded.add_(uniform(places, key).view_as(rounded)).floor_()
    rounded.clamp_(-wire.largest, wire.largest)
    if bool(scale.isnan().any()):
        rounded.nan_to_num_(0.0)
    if wire.kind == "int4":
        low, high = rounded.char().chunk(2, dim=1)
        packed = ((low & 15) | (high << 4)).view(torch.uint8).reshape(-1)
        wire.values[0, first // 2 : first // 2 + len(packed)].copy_(packed)
    else:
        wire.values[0, first : first + len(sent.used)].copy_(sent.used)
    rounded.mul_(scale[:, None])


def decode(wire: Wire, row: int, first: int, out: Tensor) -> None:
    """Write the elements of a row from `first` on, a multiple of GROUP, into `out`."""
    values = wire.values[row]
    if wire.scales is None:
        out.copy_(values[first : first + len(out)])
        return
    if wire.kind == "int4":
        planes = values[first // 2 : first // 2 - (-len(out) // GROUP) * (GROUP // 2)].view(torch.int8)
        planes = planes.view(-1, GROUP // 2)
        integers = torch.cat([(planes << 4) >> 4, planes >> 4], dim=1).view(-1)[: len(out)]
    else:
        integers = values[first : first + len(out)]
    scale = wire.scales[row, first // GROUP :]
    whole = len(out) // GROUP
    inner, rest = slice(0, whole * GROUP), slice(whole * GROUP, None)
    torch.mul(integers[inner].view(whole, GROUP), scale[:whole, None], out=out[inner].view(whole, GROUP))
    torch.mul(integers[rest], scale[whole : whole + 1], out=out[rest])
