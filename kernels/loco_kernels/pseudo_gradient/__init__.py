"""pseudo_gradient: base - local in its wire format, its size and whether it is finite, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_kernels.checks import REAL, check_flat, check_key, check_one_dtype, check_wire
from loco_kernels.chunks import CHUNK_ELEMENTS
from loco_kernels.dispatch import module_of
from loco_kernels.wire import Wire

# Elements of one sum of squares.
PART_ELEMENTS = CHUNK_ELEMENTS


@dataclass(frozen=True)
class Sent:
    """What is known of a pseudo-gradient as it is sent, rounding included.

    squares: sum of squares of each PART_ELEMENTS elements, [parts] on their device. non_finite: how many elements of
    each are NaN or infinite, int32 [parts].
    """

    squares: Tensor
    non_finite: Tensor

    @property
    def finite(self) -> bool:
        """Waits for the device."""
        return not bool(self.non_finite.any())

    @property
    def norm(self) -> float:
        """L2. Waits for the device."""
        return math.sqrt(float(self.squares.sum(dtype=torch.float64)))


@torch.no_grad()
def pseudo_gradient(
    base: Tensor,
    local: Tensor,
    *,
    out: Tensor | Wire,
    residual: Tensor | None = None,
    key: int | None = None,
    form: str | None = None,
) -> Sent:
    """Write `base - local` (DiLoCo, arXiv 2311.08105: start minus end) to `out`.

    Args:
        base: flat [n], contiguous, fp32 or bf16 (fp64 for oracles, as all others then). local: the same, fp32.
        out: flat [n], fp32 or bf16, which may be `local`; or a wire buffer of one row.
        residual: error feedback (arXiv 1809.07599): flat [n] fp32 that is added to the difference, and becomes what
            was lost by rounding.
        key: of stochastic rounding, as in `quantize`.
        form: triton, eager, reference; None: the fastest for the device.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    check_flat(local=local, residual=residual, dtypes=REAL)
    check_flat(local, base=base, dtypes=(*REAL, torch.bfloat16))
    check_one_dtype(local=local, residual=residual, base=None if base.dtype == torch.bfloat16 else base)
    if isinstance(out, Tensor):
        check_flat(local, out=out, dtypes=(*REAL, torch.bfloat16))
        check_one_dtype(local=local, out=None if out.dtype == torch.bfloat16 else out)
        out = Wire.around(out)
    check_wire("out", out, like=local, rows=1)
    check_key(key, out)
    squares, non_finite = module_of("pseudo_gradient", form, local.device).pseudo_gradient(
        base, local, out, residual, key
    )
    return Sent(squares, non_finite)
