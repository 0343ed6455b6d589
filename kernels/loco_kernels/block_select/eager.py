"""gather, scatter, squares on a CPU: one copy or one dot product for each range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loco_kernels.chunks import CHUNK_ELEMENTS

if TYPE_CHECKING:
    from loco_kernels.block_select import Selection


def gather(x: Tensor, selection: Selection, out: Tensor) -> None:
    ends = [place for _, _, place in selection.placed[1:]] + [len(out)]
    for (first, end, place), next_place in zip(selection.placed, ends, strict=False):
        behind = place + end - first
        out[place:behind].copy_(x[first:end])
        out[behind:next_place].zero_()


def scatter(packed: Tensor, selection: Selection, out: Tensor) -> None:
    for first, end, place in selection.placed:
        out[first:end].copy_(packed[place : place + end - first])


def squares(x: Tensor, blocks: Sequence[Selection]) -> Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    found = torch.zeros(len(blocks), dtype=torch.float64, device=x.device)
    for index, block in enumerate(blocks):
        for first, end in block.ranges:
            for chunk in torch.split(x[first:end], CHUNK_ELEMENTS):
                values = chunk.to(wide)
                found[index] += torch.dot(values, values)
    return found
