"""outer_step: the outer optimizer's update of base and momentum, in place, from what arrived, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.checks import REAL, check_flat, check_one_dtype, check_wire
from loco_kernels.dispatch import module_of
from loco_kernels.wire import Wire

KINDS = ("nesterov", "heavy-ball", "sgd")


@torch.no_grad()
def outer_step(
    base: Tensor,
    momentum: Tensor,
    gradient: Tensor | Wire,
    *,
    kind: str,
    lr: float,
    momentum_coefficient: float,
    parameters: Tensor | None = None,
    copy: Tensor | None = None,
    form: str | None = None,
) -> None:
    """Update `base` and `momentum` in place; on a CPU bit-equal to torch.optim.SGD(fused=True).

    nesterov: v = m v + g, x = x - lr (g + m v). heavy-ball: v = m v + g, x = x - lr v. sgd: x = x - lr g.
    With v = 0 before the first step this is PyTorch's first step, v = g.

    Args:
        base, momentum: flat [n], contiguous, fp32 (fp64 for oracles), one device.
        gradient: the same; or a wire buffer, of whose rows the mean is taken, in their order.
        parameters, copy: flat [n], fp32 and bf16: where the new base is written to as well.
        form: triton, eager, reference; None: the fastest for the device.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    check_flat(base=base, momentum=momentum, parameters=parameters, dtypes=REAL)
    check_flat(base, copy=copy, dtypes=(torch.bfloat16,))
    check_one_dtype(base=base, momentum=momentum, parameters=parameters)
    if isinstance(gradient, Tensor):
        check_flat(base, gradient=gradient, dtypes=REAL)
        check_one_dtype(base=base, gradient=gradient)
        gradient = Wire.around(gradient)
    check_wire("gradient", gradient, like=base)
    module_of("outer_step", form, base.device).outer_step(
        base, momentum, gradient, parameters, copy, kind, lr, momentum_coefficient
    )
