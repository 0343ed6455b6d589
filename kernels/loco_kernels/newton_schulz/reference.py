"""The plain twin of `newton_schulz`: one matrix after another, the products in the dtype of the argument."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.newton_schulz.coefficients import Steps


def newton_schulz(matrices: Tensor, out: Tensor, steps: Steps, scale: str, compute: torch.dtype) -> None:
    tiny = torch.finfo(matrices.dtype).tiny
    for matrix, target in zip(matrices, out, strict=True):
        rank = min(matrix.shape)
        peak = matrix.abs().max().clamp(min=tiny)
        unit = matrix / peak
        norm = unit.norm()
        polar = unit / norm.clamp(min=tiny)
        polar = polar.T if matrix.shape[0] > matrix.shape[1] else polar
        for a, b, c in steps:
            gram = polar @ polar.T
            polar = a * polar + (b * gram + c * gram @ gram) @ polar
        polar = polar.T if matrix.shape[0] > matrix.shape[1] else polar
        factors = {"none": 1, "rms": peak * norm / rank**0.5, "trace": peak * (polar * unit).sum() / rank}
        target.copy_(polar * factors[scale])
