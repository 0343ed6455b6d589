"""Checks of arguments that all operations share; each error names the argument."""

from __future__ import annotations

import torch
from torch import Tensor

# float64 serves the oracles of the tests; training runs in float32.
REAL_DTYPES = (torch.float32, torch.float64)


def check_flat_buffers(**tensors: Tensor) -> None:
    """Every tensor flat, contiguous, of one size, dtype (fp32 or fp64) and device; ValueError names the culprit."""
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(f"{name} must be flat and contiguous, got shape {tuple(tensor.shape)}")
        if tensor.dtype not in REAL_DTYPES:
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}")
        for what in ("shape", "dtype", "device"):
            if getattr(tensor, what) != getattr(first, what):
                raise ValueError(
                    f"{name} and {first_name} must have one {what}: {getattr(tensor, what)}, {getattr(first, what)}"
                )
