"""outer_step on a CPU: chunks whose base, momentum and gradient stay in the cache between the operations."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.chunks import CHUNK_ELEMENTS
from loco_kernels.quantize.eager import decode
from loco_kernels.wire import Wire


def outer_step(
    base: Tensor, momentum: Tensor, gradient: Wire, parameters: Tensor | None, copy: Tensor | None,
    kind: str, lr: float, momentum_coefficient: float,
) -> None:  # fmt: skip
    coefficient = 0.0 if kind == "sgd" else momentum_coefficient
    nesterov = kind == "nesterov" and coefficient > 0
    plain = gradient.rows == 1 and gradient.values.dtype == base.dtype
    scratch = base.new_empty(0 if plain else min(CHUNK_ELEMENTS, len(base)))
    other = torch.empty_like(scratch)
    for first in range(0, len(base), CHUNK_ELEMENTS):
        chunk = slice(first, first + CHUNK_ELEMENTS)
        x, v = base[chunk], momentum[chunk]
        g = gradient.values[0, chunk] if plain else mean(gradient, first, scratch[: len(x)], other[: len(x)])
        if kind != "sgd" and not coefficient:
            v.copy_(g)  # which torch's operation below does not do
        # One pass where operations of their own would be four. is_first_step=False: from zeros it comes to the same.
        torch._fused_sgd_(
            [x], [g], [v] if coefficient else [], lr=lr, momentum=coefficient, nesterov=nesterov, dampening=0.0,
            weight_decay=0.0, maximize=False, is_first_step=False,
        )  # fmt: skip
        for written in (parameters, copy):
            if written is not None:
                written[chunk].copy_(x)


def mean(rows: Wire, first: int, total: Tensor, other: Tensor) -> Tensor:
    """The mean of the rows' elements from `first` on, in `total`, by the scratch buffer `other`."""
    decode(rows, 0, first, total)
    for row in range(1, rows.rows):
        decode(rows, row, first, other)
        total.add_(other)
    return total.div_(rows.rows)
