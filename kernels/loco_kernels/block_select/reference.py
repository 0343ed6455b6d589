"""The plain twin of `gather`, `scatter` and `squares`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from loco_kernels.block_select import Selection


def gather(x: Tensor, selection: Selection, out: Tensor) -> None:
    parts = [x[first:end] for first, end in selection.ranges]
    padded = [torch.nn.functional.pad(part, (0, -len(part) % 128)) for part in parts]
    out.copy_(torch.cat([out[:0], *padded]))


def scatter(packed: Tensor, selection: Selection, out: Tensor) -> None:
    for first, end, place in selection.placed:
        out[first:end] = packed[place : place + end - first]


def squares(x: Tensor, blocks: Sequence[Selection]) -> Tensor:
    sums = [sum(x[first:end].double().square().sum() for first, end in block.ranges) for block in blocks]
    return torch.tensor(sums, dtype=torch.float64, device=x.device)
