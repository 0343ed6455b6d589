"""The plain twin of `pseudo_gradient`: whole buffers, in the dtype of `local`."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.chunks import CHUNK_ELEMENTS
from loco_kernels.quantize.reference import dequantize, quantize
from loco_kernels.wire import Wire


def pseudo_gradient(
    base: Tensor, local: Tensor, out: Wire, residual: Tensor | None, key: int | None
) -> tuple[Tensor, Tensor]:
    exact = base.to(local.dtype) - local
    if residual is not None:
        exact += residual
    quantize(exact, out, key)
    sent = torch.empty_like(exact)
    dequantize(out, sent)
    if residual is not None:
        residual.copy_(exact - sent)
    parts = torch.nn.functional.pad(sent, (0, -len(sent) % CHUNK_ELEMENTS)).view(-1, CHUNK_ELEMENTS)
    return parts.square().sum(1), (~parts.isfinite()).sum(1, dtype=torch.int32)
