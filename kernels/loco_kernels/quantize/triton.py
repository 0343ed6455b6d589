"""quantize, dequantize in Triton: one pass over the buffer each."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loco_kernels.tiles import decode, encode, first_of_program, load, lower_half, store
from loco_kernels.wire import GROUP, Wire

GROUPS = 32


@triton.jit
def quantize_kernel(x, values, scales, n, key, LARGEST: tl.constexpr, STOCHASTIC: tl.constexpr, GROUPS: tl.constexpr):
    start = first_of_program(GROUPS)
    low_at = lower_half(start, GROUPS)
    whole = start + GROUPS * 128 <= n
    low, high = load(x, low_at, n, whole), load(x, low_at + 64, n, whole)
    encode(values, scales, low, high, start, n, whole, key, LARGEST, STOCHASTIC, GROUPS)


@triton.jit
def dequantize_kernel(values, scales, out, n, LARGEST: tl.constexpr, GROUPS: tl.constexpr):
    start = first_of_program(GROUPS)
    low_at = lower_half(start, GROUPS)
    whole = start + GROUPS * 128 <= n
    low, high = decode(values, scales, start, n, whole, LARGEST, GROUPS)
    store(out, low_at, low, n, whole)
    store(out, low_at + 64, high, n, whole)


def quantize(x: Tensor, wire: Wire, key: int | None) -> None:
    grid = (triton.cdiv(len(x), GROUPS * GROUP),)
    stochastic = key is not None
    quantize_kernel[grid](
        x, wire.values, wire.scales, len(x), key or 0, wire.largest, stochastic, GROUPS, enable_fp_fusion=False
    )


def dequantize(wire: Wire, out: Tensor) -> None:
    grid = (triton.cdiv(len(out), GROUPS * GROUP),)
    dequantize_kernel[grid](wire.values, wire.scales, out, len(out), wire.largest, GROUPS, enable_fp_fusion=False)
