"""block_select: chosen blocks of a flat buffer, how large each is, and to and from one contiguous buffer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_kernels.block_select.choice import choose_blocks as choose_blocks
from loco_kernels.checks import REAL, check_flat
from loco_kernels.dispatch import module_of
from loco_kernels.wire import GROUP

# Elements of one program: what it copies lies in one range.
TILE_ELEMENTS = 4096
_DTYPES = (*REAL, torch.bfloat16)


@dataclass(frozen=True)
class Selection:
    """Ranges [first, end) of a flat buffer, which travel one after the other.

    In the contiguous buffer each begins at a multiple of 128 elements, so that no group of a wire format belongs to two
    of them; what fills the space between is zero. On a GPU `first` must be a multiple of 128 too.
    """

    ranges: tuple[tuple[int, int], ...]

    @functools.cached_property
    def placed(self) -> tuple[tuple[int, int, int], ...]:
        """(first, end, place in the contiguous buffer) of each range."""
        found, place = [], 0
        for first, end in self.ranges:
            found.append((first, end, place))
            place += -(-(end - first) // GROUP) * GROUP
        return tuple(found)

    @property
    def numel(self) -> int:
        """Elements of the contiguous buffer."""
        return sum(-(-(end - first) // GROUP) * GROUP for first, end in self.ranges)

    def tiles(self, device: torch.device) -> Tensor:
        """int64 [tiles, 3] on the device: first, place and length of pieces of at most TILE_ELEMENTS."""
        return _tiles(self, device)


@functools.lru_cache(maxsize=256)
def _tiles(selection: Selection, device: torch.device) -> Tensor:
    misplaced = [first for first, _ in selection.ranges if first % GROUP]
    if misplaced:
        raise ValueError(f"ranges must begin at multiples of {GROUP} for Triton, got {misplaced[0]}")
    pieces = [
        (first + step, place + step, min(TILE_ELEMENTS, end - first - step))
        for first, end, place in selection.placed
        for step in range(0, end - first, TILE_ELEMENTS)
    ]
    return torch.tensor(pieces, dtype=torch.int64).view(-1, 3).to(device)


@torch.no_grad()
def gather(x: Tensor, selection: Selection, *, out: Tensor, form: str | None = None) -> None:
    """Copy the selection's ranges of `x` into `out`, zeros between them.

    Args:
        x: flat [n], contiguous, fp32 or bf16 (fp64 for oracles). out: flat [selection.numel], its dtype and device.
        form: triton, eager, reference; None: the fastest for the device.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    _check(x, selection, "out", out)
    module_of("block_select", form, x.device).gather(x, selection, out)


@torch.no_grad()
def scatter(packed: Tensor, selection: Selection, *, out: Tensor, form: str | None = None) -> None:
    """Copy what `gather` made back into the selection's ranges of `out`; the rest of it stays.

    Args, raises: as `gather`; packed: flat [selection.numel]. out: flat [n].
    """
    _check(out, selection, "packed", packed)
    module_of("block_select", form, out.device).scatter(packed, selection, out)


@torch.no_grad()
def squares(x: Tensor, blocks: Sequence[Selection], *, form: str | None = None) -> Tensor:
    """The sum of squares of each block, fp64 [blocks] on x's device, of partial sums in x's dtype, at least fp32.

    Args, raises: as `gather`; blocks: the ranges of each.
    """
    for block in blocks:
        _check(x, block)
    found: Tensor = module_of("block_select", form, x.device).squares(x, blocks)
    return found


def _check(x: Tensor, selection: Selection, name: str = "", packed: Tensor | None = None) -> None:
    check_flat(x=x, dtypes=_DTYPES)
    outside = [(a, b) for a, b in selection.ranges if not 0 <= a <= b <= len(x)]
    if outside:
        raise ValueError(f"ranges must lie within the buffer's {len(x)} elements, got {outside[0]}")
    if packed is not None:
        check_flat(**{name: packed}, dtypes=(x.dtype,))
        if len(packed) != selection.numel or packed.device != x.device:
            raise ValueError(
                f"{name} must have {selection.numel} elements on {x.device}, got {len(packed)} on {packed.device}"
            )
