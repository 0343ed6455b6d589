"""outer_step in Triton: everything is read once and written once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loco_kernels.tiles import decode, first_of_program, load, lower_half, store
from loco_kernels.wire import Wire

# Few, since registers hold base, momentum and gradient at once; with as many as elsewhere it takes twice as many
# registers as would leave the processor enough warps to hide its memory behind.
GROUPS = 16


@triton.jit
def _update(x, v, g, lr, coefficient, KIND: tl.constexpr):
    if KIND == "sgd":
        x = x - lr * g
    else:
        v = coefficient * v + g
        if KIND == "nesterov":
            x = x - lr * (g + coefficient * v)
        else:
            x = x - lr * v
    return x, v


@triton.jit
def _write(base, momentum, parameters, copy, at, x, v, n, whole, KIND: tl.constexpr):
    store(base, at, x, n, whole)
    if KIND != "sgd":
        store(momentum, at, v, n, whole)
    if parameters is not None:
        store(parameters, at, x, n, whole)
    if copy is not None:
        store(copy, at, x, n, whole)


@triton.jit
def outer_step_kernel(
    base, momentum, values, scales, parameters, copy, n, value_stride, scale_stride, lr, coefficient,
    ROWS: tl.constexpr, LARGEST: tl.constexpr, KIND: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    start = first_of_program(GROUPS)
    low_at = lower_half(start, GROUPS)
    high_at = low_at + 64
    whole = start + GROUPS * 128 <= n
    low, high = decode(values, scales, start, n, whole, LARGEST, GROUPS)
    for row in tl.static_range(1, ROWS):
        row_scales = scales
        if scales is not None:
            row_scales = scales + row * scale_stride
        next_low, next_high = decode(values + row * value_stride, row_scales, start, n, whole, LARGEST, GROUPS)
        low += next_low
        high += next_high
    if ROWS > 1:
        low = tl.div_rn(low, tl.zeros_like(low) + ROWS)
        high = tl.div_rn(high, tl.zeros_like(high) + ROWS)
    low_x, low_v = _update(load(base, low_at, n, whole), load(momentum, low_at, n, whole), low, lr, coefficient, KIND)
    high_x, high_v = _update(
        load(base, high_at, n, whole), load(momentum, high_at, n, whole), high, lr, coefficient, KIND
    )
    _write(base, momentum, parameters, copy, low_at, low_x, low_v, n, whole, KIND)
    _write(base, momentum, parameters, copy, high_at, high_x, high_v, n, whole, KIND)


def outer_step(
    base: Tensor, momentum: Tensor, gradient: Wire, parameters: Tensor | None, copy: Tensor | None,
    kind: str, lr: float, momentum_coefficient: float,
) -> None:  # fmt: skip
    if len(base):
        scale_stride = 0 if gradient.scales is None else gradient.scales.stride(0)
        outer_step_kernel[(triton.cdiv(len(base), GROUPS * 128),)](
            base, momentum, gradient.values, gradient.scales, parameters, copy, len(base),
            gradient.values.stride(0), scale_stride, lr, momentum_coefficient,
            gradient.rows, gradient.largest, kind, GROUPS, enable_fp_fusion=False,
        )  # fmt: skip
