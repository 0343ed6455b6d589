"""The plain twin of `mix`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loco_kernels.quantize.reference import dequantize
from loco_kernels.wire import Wire


def mix(terms: Sequence[Wire], weights: Sequence[float], out: Tensor, base: Tensor | None) -> None:
    total = torch.zeros_like(out) if base is None else base.clone()
    for term, weight in zip(terms, weights, strict=True):
        value = torch.empty_like(out)
        dequantize(term, value)
        total = total + weight * value
    out.copy_(total)
