"""The plain twin of `outer_step`: v' = m v + g; x' = x - lr (g + m v'), x - lr v' or x - lr g by `kind`."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.quantize.reference import dequantize
from loco_kernels.wire import Wire


def outer_step(
    base: Tensor, momentum: Tensor, gradient: Wire, parameters: Tensor | None, copy: Tensor | None,
    kind: str, lr: float, momentum_coefficient: float,
) -> None:  # fmt: skip
    rows = [torch.empty_like(base) for _ in range(gradient.rows)]
    for index, row in enumerate(rows):
        dequantize(gradient.row(index), row)
    mean = sum(rows[1:], rows[0]) / len(rows)
    if kind == "sgd":
        base.copy_(base - lr * mean)
    else:
        momentum.copy_(momentum_coefficient * momentum + mean)
        base.copy_(base - lr * (mean + momentum_coefficient * momentum if kind == "nesterov" else momentum))
    for written in (parameters, copy):
        if written is not None:
            written.copy_(base)
