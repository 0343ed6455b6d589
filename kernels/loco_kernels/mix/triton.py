"""mix in Triton: up to four terms in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from loco_kernels.tiles import decode, first_of_program, load, lower_half, store
from loco_kernels.wire import Wire

GROUPS = 16
_AT_ONCE = 4


@triton.jit
def _add(low, high, values, scales, weight, start, n, whole, LARGEST: tl.constexpr, GROUPS: tl.constexpr):
    if values is not None:
        low_term, high_term = decode(values, scales, start, n, whole, LARGEST, GROUPS)
        low += weight * low_term
        high += weight * high_term
    return low, high


@triton.jit
def mix_kernel(
    out, base, values_0, values_1, values_2, values_3, scales_0, scales_1, scales_2, scales_3, n,
    weight_0, weight_1, weight_2, weight_3,
    LARGEST_0: tl.constexpr, LARGEST_1: tl.constexpr, LARGEST_2: tl.constexpr, LARGEST_3: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    start = first_of_program(GROUPS)
    at = lower_half(start, GROUPS)
    whole = start + GROUPS * 128 <= n
    if base is not None:
        low, high = load(base, at, n, whole), load(base, at + 64, n, whole)
    else:
        low = tl.zeros([GROUPS, 64], tl.float32)
        high = low
    low, high = _add(low, high, values_0, scales_0, weight_0, start, n, whole, LARGEST_0, GROUPS)
    low, high = _add(low, high, values_1, scales_1, weight_1, start, n, whole, LARGEST_1, GROUPS)
    low, high = _add(low, high, values_2, scales_2, weight_2, start, n, whole, LARGEST_2, GROUPS)
    low, high = _add(low, high, values_3, scales_3, weight_3, start, n, whole, LARGEST_3, GROUPS)
    store(out, at, low, n, whole)
    store(out, at + 64, high, n, whole)


def mix(terms: Sequence[Wire], weights: Sequence[float], out: Tensor, base: Tensor | None) -> None:
    # What later passes read must not be overwritten by the first: `out` may be one of the terms.
    total = out if len(terms) <= _AT_ONCE else torch.empty_like(out)
    for first in range(0, len(terms), _AT_ONCE):
        last = first + _AT_ONCE >= len(terms)
        _pass(terms[first : first + _AT_ONCE], weights[first : first + _AT_ONCE], out if last else total, base)
        base = total


def _pass(terms: Sequence[Wire], weights: Sequence[float], out: Tensor, base: Tensor | None) -> None:
    if not len(out):
        return
    missing = [None] * (_AT_ONCE - len(terms))
    mix_kernel[(triton.cdiv(len(out), GROUPS * 128),)](
        out, base, *(t.values for t in terms), *missing, *(t.scales for t in terms), *missing, len(out),
        *weights, *(0.0 for _ in missing), *(t.largest for t in terms), *(0 for _ in missing),
        GROUPS, enable_fp_fusion=False,
    )  # fmt: skip
