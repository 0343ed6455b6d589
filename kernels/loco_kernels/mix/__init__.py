"""mix: the weighted sum of what islands hold, for pairs and a few peers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loco_kernels.checks import REAL, check_flat, check_one_dtype, check_wire
from loco_kernels.dispatch import module_of
from loco_kernels.wire import Wire


@torch.no_grad()
def mix(
    terms: Sequence[Tensor | Wire],
    weights: Sequence[float],
    *,
    out: Tensor,
    base: Tensor | None = None,
    form: str | None = None,
) -> None:
    """Write base + w[0] terms[0] + w[1] terms[1] + ... to `out`, added in this order.

    Islands that name their terms in one order, by rank, get the same bits on all sides, which keeps them equal.

    Args:
        terms: each flat [n], contiguous, fp32 (fp64 for oracles), or a wire buffer of one row. At least one.
        weights: one for each term.
        out: flat [n], fp32; it may be one of the terms, or `base`.
        base: flat [n], fp32, for terms that are differences to it; None: zero.
        form: triton, eager, reference; None: the fastest for the device.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    if len(terms) != len(weights) or not terms:
        raise ValueError(f"terms and weights must be as many, at least one, got {len(terms)} and {len(weights)}")
    check_flat(out=out, base=base, dtypes=REAL)
    check_one_dtype(out=out, base=base)
    rows = []
    for index, term in enumerate(terms):
        name = f"terms[{index}]"
        if isinstance(term, Tensor):
            check_flat(out, **{name: term}, dtypes=REAL)
            check_one_dtype(out=out, **{name: term})
        rows.append(Wire.around(term) if isinstance(term, Tensor) else term)
        check_wire(name, rows[-1], like=out, rows=1)
    module_of("mix", form, out.device).mix(rows, weights, out, base)
