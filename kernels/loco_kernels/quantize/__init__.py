"""quantize, dequantize: a flat fp32 buffer to and from its wire format."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.checks import REAL, check_flat, check_key, check_wire
from loco_kernels.dispatch import module_of
from loco_kernels.wire import Wire as Wire


@torch.no_grad()
def quantize(x: Tensor, wire: Wire, *, key: int | None = None, form: str | None = None) -> None:
    """Write `x` into `wire`.

    Integers are x / scale, rounded to the nearest (half to even), with the scale max|x| / 127 (int8) or / 7 (int4) of
    the element's group. A group below 2**-119 everywhere becomes zero; one with NaN, infinity or a value beyond
    2**127 becomes NaN, so that no failure travels as a number.

    Args:
        x: flat [n], contiguous, fp32.
        wire: one row of n elements, on x's device.
        key: for stochastic rounding, unbiased: floor(x / scale + u) with u from `loco_kernels.random.uniform` of the
            element's place and this key, the same on every device. int8 and int4 only.
        form: triton, eager, reference; None: the fastest for the device.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    check_flat(x=x, dtypes=REAL)
    check_wire("wire", wire, like=x, rows=1)
    check_key(key, wire)
    module_of("quantize", form, x.device).quantize(x, wire, key)


@torch.no_grad()
def dequantize(wire: Wire, out: Tensor, *, form: str | None = None) -> None:
    """Write the values of a wire buffer into `out`.

    Args:
        wire: one row of n elements. out: flat [n], contiguous, fp32, on its device.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    check_flat(out=out, dtypes=REAL)
    check_wire("wire", wire, like=out, rows=1)
    module_of("quantize", form, out.device).dequantize(wire, out)
