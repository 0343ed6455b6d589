"""mix on a CPU: chunks that stay in the cache, and two scratch buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loco_kernels.chunks import CHUNK_ELEMENTS
from loco_kernels.quantize.eager import decode
from loco_kernels.wire import Wire


def mix(terms: Sequence[Wire], weights: Sequence[float], out: Tensor, base: Tensor | None) -> None:
    scratch = out.new_empty(2, min(CHUNK_ELEMENTS, len(out)))
    for first in range(0, len(out), CHUNK_ELEMENTS):
        target = out[first : first + CHUNK_ELEMENTS]
        total, other = scratch[:, : len(target)]
        for index, (term, weight) in enumerate(zip(terms, weights, strict=True)):
            value = _values(term, first, other)
            if index:
                total.add_(value, alpha=weight)
            elif base is None:
                torch.mul(value, weight, out=total)
            else:
                torch.add(base[first : first + len(target)], value, alpha=weight, out=total)
        # Last, since `out` may be one of the terms.
        target.copy_(total)


def _values(term: Wire, first: int, scratch: Tensor) -> Tensor:
    if term.values.dtype == scratch.dtype:
        return term.values[0, first : first + len(scratch)]
    decode(term, 0, first, scratch)
    return scratch
