"""Checks of arguments that all operations share; each error names the argument, what it is and what it may be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loco_kernels.wire import Wire

# float64 serves the oracles of the tests; training runs in float32.
REAL = (torch.float32, torch.float64)
# Without it Triton's loads and stores fall from 128 bits to 32.
_ALIGNMENT_BYTES = 16
# Devices whose kernels take it for granted.
ALIGNED_ON = ("cuda",)


def check_flat(like: Tensor | None = None, *, dtypes: Sequence[torch.dtype], **tensors: Tensor | None) -> None:
    """Every tensor flat, contiguous, aligned, of one of `dtypes`, and of the size and device of `like` (of the first
    one where that is None); those that are None are passed over.

    Raises:
        ValueError: names the argument that does not fit.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(f"{name} must be flat and contiguous, got shape {tuple(tensor.shape)}")
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name} must be {' or '.join(map(_short, dtypes))}, got {_short(tensor.dtype)}")
        if tensor.device.type in ALIGNED_ON and tensor.data_ptr() % _ALIGNMENT_BYTES:
            raise ValueError(f"{name} must start at a multiple of {_ALIGNMENT_BYTES} bytes, got {tensor.data_ptr():#x}")
        like = tensor if like is None else like
        if len(tensor) != len(like):
            raise ValueError(f"{name} must have {len(like)} elements as the others, got {len(tensor)}")
        if tensor.device != like.device:
            raise ValueError(f"{name} must be on {like.device} as the others, got {tensor.device}")


def check_one_dtype(**tensors: Tensor | None) -> None:
    """ValueError names the first tensor that has another dtype than the first one; None is passed over."""
    present = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    first_name, first = present[0]
    for name, tensor in present[1:]:
        if tensor.dtype != first.dtype:
            raise ValueError(f"{name} must be {_short(first.dtype)} as {first_name}, got {_short(tensor.dtype)}")


def check_wire(name: str, wire: Wire, *, like: Tensor, rows: int | None = None) -> None:
    """A wire buffer of as many elements as `like`, on its device, of `rows` rows.

    Raises:
        ValueError: says what does not fit.
    """
    if wire.numel != len(like):
        raise ValueError(f"{name} must have {len(like)} elements as the others, got {wire.numel}")
    if wire.buffer.device != like.device:
        raise ValueError(f"{name} must be on {like.device} as the others, got {wire.buffer.device}")
    if rows is not None and wire.rows != rows:
        raise ValueError(f"{name} must have {rows} row{'s' if rows != 1 else ''}, got {wire.rows}")


def check_key(key: int | None, wire: Wire) -> None:
    """Plain formats have no stochastic rounding; a key has 64 bits."""
    if key is not None and wire.scales is None:
        raise ValueError(f"key is for int8 and int4: {wire.kind} is rounded to the nearest")
    if key is not None and not -(2**63) <= key < 2**63:
        raise ValueError(f"key must fit into a signed 64-bit integer, got {key}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
