"""pseudo_gradient on a CPU: chunks that stay in the cache between the operations, each one a part."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.chunks import CHUNK_ELEMENTS, Scratch
from loco_kernels.quantize.eager import encode
from loco_kernels.wire import GROUP, Wire


def pseudo_gradient(
    base: Tensor, local: Tensor, out: Wire, residual: Tensor | None, key: int | None
) -> tuple[Tensor, Tensor]:
    parts = -(-len(local) // CHUNK_ELEMENTS)
    squares, bad = local.new_empty(parts), torch.zeros(parts, dtype=torch.int32, device=local.device)
    exact, sent = (Scratch(len(local), GROUP, like=local) for _ in range(2))
    for part in range(parts):
        first = part * CHUNK_ELEMENTS
        chunk = slice(first, first + CHUNK_ELEMENTS)
        own = exact.resized(len(local[chunk]))
        # Converted by a copy: an operation on two dtypes is five times slower.
        torch.sub(own.copy_(base[chunk]) if base.dtype != own.dtype else base[chunk], local[chunk], out=own)
        if residual is not None:
            own.add_(residual[chunk])
        received = _send(exact, sent, out, first, key)
        if residual is not None:
            torch.sub(own, received, out=residual[chunk])
        squares[part] = torch.dot(received, received)
        # A finite sum of squares has finite terms: most often nothing more is to be looked at.
        if not squares[part].isfinite():
            bad[part] = (~received.isfinite()).sum()
    return squares, bad


def _send(exact: Scratch, sent: Scratch, out: Wire, first: int, key: int | None) -> Tensor:
    """Write the chunk in `exact` to the wire; what a receiver reads."""
    received = sent.resized(len(exact.used))
    if out.scales is not None:
        encode(exact, sent, out, first, key)
        return received
    target = out.values[0, first : first + len(exact.used)]
    target.copy_(exact.used)
    return exact.used if target.dtype == received.dtype else received.copy_(target)
