"""Whole rows of logits from the columns that each tensor parallel rank has."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from loco_train.islands.layout import Layout

# In fp64, and copied some times: 128 rows of 128 thousand tokens are 134 MB.
ROWS = 128


@torch.no_grad()
def whole_logits(logits: Tensor, layout: Layout, *, vocabulary: int) -> Iterator[Tensor]:
    """fp32 [rows, vocabulary], some rows at a time, padding cut off. Collective over the tensor parallel ranks.

    logits: this rank's, [s, b, padded vocabulary / tensor].
    """
    for rows in torch.split(logits.flatten(0, 1), ROWS):
        part = rows.float().contiguous()
        if layout.tensor > 1:
            parts = [torch.empty_like(part) for _ in range(layout.tensor)]
            dist.all_gather(parts, part, group=parallel_state.get_tensor_model_parallel_group())
            part = torch.cat(parts, dim=1)
        yield part[:, :vocabulary]
