"""Iso-C (IsoLoCo, arXiv 2607.03011, section 3): a matrix with its singular vectors kept and its spectrum made flat.

Pseudo-gradients are dominated by a few directions on which the islands agree; a flat spectrum gives the others their
say. Exact by SVD, or fast by Newton-Schulz iterations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Five steps, coefficients (a, b, c) of X <- a X + (b A + c A^2) X with A = X X^T (arXiv 2607.03011, fast mode).
NEWTON_SCHULZ = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def flat_spectrum(matrix: Tensor) -> Tensor:
    """All singular values of `matrix` [m, n] (fp32 or fp64) set to their mean over min(m, n), by SVD.

    Null directions stay at zero: their singular vectors are rounding noise, which a flat spectrum would raise to full
    length.
    """
    u, s, v = svd(matrix)
    kept = ~null_directions(s, matrix)
    return (u[:, kept] * s.mean()) @ v[kept]


def clip_high(matrix: Tensor) -> Tensor:
    """Singular values above their mean set to it; raises none, and keeps most of Iso's gain (CLIP_HIGH)."""
    u, s, v = svd(matrix)
    return (u * s.clamp(max=float(s.mean()))) @ v


def clip_low(matrix: Tensor) -> Tensor:
    """Singular values below their mean set to it, null directions excepted (CLIP_LOW)."""
    u, s, v = svd(matrix)
    return (u * s.clamp(min=float(s.mean())).masked_fill(null_directions(s, matrix), 0)) @ v


@dataclass(frozen=True)
class NewtonSchulz:
    """The fast mode: about U V^T by matrix products, times a scale.

    scale: `rms` as in the paper, |G|_F / sqrt(min(m, n)): the root mean square of the singular values, at least their
        mean and far above it when they decay. `trace`: <U V^T, G> / min(m, n), which is their mean itself.
    dtype: of the products: bf16 as in the paper; None: the matrix's own, where the hardware has no fast bf16.
    """

    scale: str = "trace"
    dtype: torch.dtype | None = None

    def __call__(self, matrix: Tensor) -> Tensor:
        """`matrix` [m, n] with a nearly flat spectrum; null directions stay at zero."""
        polar = newton_schulz(matrix.to(self.dtype or matrix.dtype)).to(matrix.dtype)
        rank = min(matrix.shape)
        factor = (polar * matrix).sum() / rank if self.scale == "trace" else matrix.norm() / rank**0.5
        return polar * factor


def newton_schulz(matrix: Tensor) -> Tensor:
    """About U V^T of `matrix` [m, n]; singular values land in [0.7, 1.15] where they were over 2e-3 of its norm."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=torch.finfo(x.dtype).tiny)  # an added epsilon would weigh small progress down
    for a, b, c in NEWTON_SCHULZ:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.T if matrix.shape[0] > matrix.shape[1] else x
    return result


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U [m, k], singular values [k] from the largest, V^T [k, n] of `matrix` [m, n]; k is min(m, n)."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    return u, s, v


def null_directions(singular_values: Tensor, matrix: Tensor) -> Tensor:
    """Which of its singular values are what rounding makes of a zero: at most max(m, n) * eps * the largest."""
    bound = max(matrix.shape) * torch.finfo(matrix.dtype).eps * singular_values.max()
    return singular_values <= bound
