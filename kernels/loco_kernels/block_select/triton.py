"""gather, scatter, squares in Triton: a program for each piece of a range, by a table of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from loco_kernels.block_select import Selection

TILE = 4096
_GROUP = tl.constexpr(128)


@triton.jit
def copy_kernel(source, target, tiles, GATHER: tl.constexpr, TILE: tl.constexpr):
    row = tiles + tl.program_id(0) * 3
    # The compiler cannot see what a table holds; without this the accesses are of 32 bits.
    first = tl.multiple_of(tl.load(row), _GROUP)
    place = tl.multiple_of(tl.load(row + 1), _GROUP)
    length = tl.load(row + 2)
    at = tl.arange(0, TILE)
    if GATHER:
        read, write = source + first, target + place
    else:
        read, write = source + place, target + first
    if length == TILE:
        tl.store(write + at, tl.load(read + at))
    elif GATHER:
        # Zeros up to the next multiple of 128.
        value = tl.load(read + at, mask=at < length, other=0.0)
        tl.store(write + at, value, mask=at < tl.cdiv(length, _GROUP) * _GROUP)
    else:
        tl.store(write + at, tl.load(read + at, mask=at < length), mask=at < length)


@triton.jit
def squares_kernel(x, tiles, sums, TILE: tl.constexpr):
    row = tiles + tl.program_id(0) * 3
    first = tl.multiple_of(tl.load(row), _GROUP)
    length = tl.load(row + 2)
    at = tl.arange(0, TILE)
    if length == TILE:
        value = tl.load(x + first + at)
    else:
        value = tl.load(x + first + at, mask=at < length, other=0.0)
    value = value.to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(value * value))


def gather(x: Tensor, selection: Selection, out: Tensor) -> None:
    _copy(x, out, selection.tiles(x.device), gather=True)


def scatter(packed: Tensor, selection: Selection, out: Tensor) -> None:
    _copy(packed, out, selection.tiles(out.device), gather=False)


def _copy(source: Tensor, target: Tensor, tiles: Tensor, *, gather: bool) -> None:
    if len(tiles):
        copy_kernel[(len(tiles),)](source, target, tiles, gather, TILE)


def squares(x: Tensor, blocks: Sequence[Selection]) -> Tensor:
    each = [block.tiles(x.device) for block in blocks]
    tiles = torch.cat(each) if each else torch.empty(0, 3, dtype=torch.int64, device=x.device)
    sums = torch.empty(len(tiles), dtype=torch.float32, device=x.device)
    if len(tiles):
        squares_kernel[(len(tiles),)](x, tiles, sums, TILE)
    # By block and in order: atomic additions would give other bits each time.
    parts = sums.double().split([len(tiles_of_one) for tiles_of_one in each])
    return torch.stack([part.sum() for part in parts]) if each else sums.double()
