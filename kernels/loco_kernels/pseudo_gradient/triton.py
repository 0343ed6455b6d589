"""pseudo_gradient in Triton: everything is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loco_kernels.chunks import CHUNK_ELEMENTS
from loco_kernels.tiles import encode, first_of_program, load, lower_half, non_finite, store
from loco_kernels.wire import GROUP, Wire

GROUPS = 32


@triton.jit
def pseudo_gradient_kernel(
    base, local, residual, values, scales, squares, bad, n, key,
    LARGEST: tl.constexpr, STOCHASTIC: tl.constexpr, FEEDBACK: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    start = first_of_program(GROUPS)
    low_at = lower_half(start, GROUPS)
    high_at = low_at + 64
    whole = start + GROUPS * 128 <= n
    low = load(base, low_at, n, whole) - load(local, low_at, n, whole)
    high = load(base, high_at, n, whole) - load(local, high_at, n, whole)
    if FEEDBACK:
        low += load(residual, low_at, n, whole)
        high += load(residual, high_at, n, whole)
    sent_low, sent_high = encode(values, scales, low, high, start, n, whole, key, LARGEST, STOCHASTIC, GROUPS)
    if FEEDBACK:
        store(residual, low_at, low - sent_low, n, whole)
        store(residual, high_at, high - sent_high, n, whole)
    tl.store(squares + tl.program_id(0), tl.sum(sent_low * sent_low + sent_high * sent_high))
    tl.store(bad + tl.program_id(0), tl.sum(non_finite(sent_low) + non_finite(sent_high)))


def pseudo_gradient(
    base: Tensor, local: Tensor, out: Wire, residual: Tensor | None, key: int | None
) -> tuple[Tensor, Tensor]:
    programs = triton.cdiv(len(local), GROUPS * GROUP)
    each = CHUNK_ELEMENTS // (GROUPS * GROUP)
    # Whole parts, so that the programs' sums add up to the parts' without a loop on the host.
    squares = torch.zeros(triton.cdiv(programs, each), each, dtype=torch.float32, device=local.device)
    bad = torch.zeros_like(squares, dtype=torch.int32)
    if programs:
        pseudo_gradient_kernel[(programs,)](
            base, local, residual, out.values, out.scales, squares, bad, len(local), key or 0,
            out.largest, key is not None, residual is not None, GROUPS, enable_fp_fusion=False,
        )  # fmt: skip
    return squares.sum(1), bad.sum(1, dtype=torch.int32)
