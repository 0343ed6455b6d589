"""Causal grouped-query attention as Megatron-core's core attention module."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class CausalAttention(torch.nn.Module):
    """PyTorch's scaled dot product attention, always causal, without dropout.

    Megatron's own DotProductAttention takes its scratch memory from CUDA and cannot run elsewhere; PyTorch's picks
    flash attention where it can.
    """

    def __init__(self, *, softmax_scale: float | None = None, **_of_megatron: Any) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_of_megatron: Any, **_also: Any) -> Tensor:
        """query [s, b, heads, d]; key, value [s, b, groups, d]; returns [s, b, heads * d]."""
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        grouped = q.shape[1] != k.shape[1]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=grouped)
        return mixed.permute(2, 0, 1, 3).flatten(2)
