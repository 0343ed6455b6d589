"""Iso-C (IsoLoCo, arXiv 2607.03011, section 3): a matrix with its singular vectors kept and its spectrum made flat.

Pseudo-gradients are dominated by a few directions on which the islands agree; a flat spectrum gives the others their
say. Exact by SVD, or fast by Newton-Schulz iterations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from loco_kernels import newton_schulz
from torch import Tensor


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

    scale: `rms` as in the paper, the root mean square of the singular values, at least their mean and far above it when
        they decay. `trace`: <U V^T, G> / min(m, n), which is their mean itself.
    """

    scale: str = "trace"

    def __call__(self, matrix: Tensor) -> Tensor:
        """`matrix` [m, n] with a nearly flat spectrum; null directions stay near zero."""
        return newton_schulz(matrix.contiguous(), scale=self.scale)


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U [m, k], singular values [k] from the largest, V^T [k, n] of `matrix` [m, n]; k is min(m, n)."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    return u, s, v


def null_directions(singular_values: Tensor, matrix: Tensor) -> Tensor:
    """Which of its singular values are what rounding makes of a zero: at most max(m, n) * eps * the largest."""
    bound = max(matrix.shape) * torch.finfo(matrix.dtype).eps * singular_values.max()
    return singular_values <= bound
