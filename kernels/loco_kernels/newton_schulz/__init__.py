"""newton_schulz: matrices with their singular vectors kept and their spectra made flat, by matrix products alone."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.checks import REAL, check_one_dtype
from loco_kernels.dispatch import module_of
from loco_kernels.newton_schulz.coefficients import COEFFICIENTS

SCALES = ("trace", "rms", "none")
COMPUTE = (torch.float32, torch.float16, torch.bfloat16)


@torch.no_grad()
def newton_schulz(
    matrices: Tensor,
    *,
    out: Tensor | None = None,
    coefficients: str = "iso",
    scale: str = "trace",
    compute: torch.dtype | None = None,
    form: str | None = None,
) -> Tensor:
    """About s U V^T of each matrix G = U S V^T (Iso-C's fast mode, arXiv 2607.03011, section 3).

    Each is divided by its Frobenius norm, without an epsilon, which would weigh small progress down; then five steps
    X <- a X + (b A + c A^2) X with A = X X^T. Null directions stay at zero, up to the rounding of X magnified by the
    slope at zero (493 for iso): at a few hundredths for a matrix of rank one in fp16. A matrix of zeros gives zeros.
    One that holds NaN or infinity gives NaN, and leaves the others of its batch alone.

    Args:
        matrices: [m, n] or [b, m, n], contiguous, fp32 (fp64 for oracles; Triton computes them in fp32).
        out: where the result goes, of the same shape, dtype and device; it may be `matrices`. None: a new tensor.
        coefficients: iso, polar-express, cans: see coefficients.py for where singular values land.
        scale: s of each matrix: trace: <U V^T, G> / min(m, n), about the mean of its singular values; rms:
            |G|_F / sqrt(min(m, n)), their root mean square; none: 1.
        compute: dtype of the products, fp32, fp16 or bf16; None: fp16 on a GPU, that of `matrices` elsewhere. fp16 is
            eight times as accurate as bf16, and faster where one side is twice the other: bf16 does not bear two steps
            at once. Few CPUs multiply fp16 at a useful speed.
        form: triton, eager, reference (which computes in the dtype of `matrices`); None: the fastest for the device.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    _check(matrices, out, coefficients, scale, compute)
    out = torch.empty_like(matrices) if out is None else out
    compute = compute or (torch.float16 if matrices.is_cuda else matrices.dtype)
    batch, results = (x if x.dim() == 3 else x[None] for x in (matrices, out))
    module_of("newton_schulz", form, matrices.device).newton_schulz(
        batch, results, COEFFICIENTS[coefficients], scale, compute
    )
    return out


def _check(matrices: Tensor, out: Tensor | None, coefficients: str, scale: str, compute: torch.dtype | None) -> None:
    if matrices.dim() not in (2, 3) or not matrices.numel():
        raise ValueError(f"matrices must be [m, n] or [b, m, n], none of them 0, got {list(matrices.shape)}")
    if matrices.dtype not in REAL:
        raise ValueError(f"matrices must be float32 or float64, got {_short(matrices.dtype)}")
    if not matrices.is_contiguous():
        raise ValueError(f"matrices must be contiguous, got strides {list(matrices.stride())}")
    if coefficients not in COEFFICIENTS:
        raise ValueError(f"coefficients must be one of {', '.join(COEFFICIENTS)}, got {coefficients!r}")
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if compute is not None and compute not in COMPUTE:
        raise ValueError(f"compute must be {', '.join(map(_short, COMPUTE))} or None, got {_short(compute)}")
    if out is not None:
        _check_out(out, matrices)


def _check_out(out: Tensor, matrices: Tensor) -> None:
    check_one_dtype(matrices=matrices, out=out)
    if out.shape != matrices.shape:
        raise ValueError(f"out must be {list(matrices.shape)} as matrices, got {list(out.shape)}")
    if not out.is_contiguous():
        raise ValueError(f"out must be contiguous, got strides {list(out.stride())}")
    if out.device != matrices.device:
        raise ValueError(f"out must be on {matrices.device} as matrices, got {out.device}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
