"""outer_step: the outer optimizer's update of base and momentum, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.checks import check_flat_buffers
from loco_kernels.outer_step.reference import outer_step_reference as outer_step_reference

KINDS = ("nesterov", "heavy-ball", "sgd")

# Elements of one pass: base, momentum and gradient of a chunk (3 MiB of fp32) stay in a core's cache between the
# operations, so that each is read from memory once.
CHUNK_ELEMENTS = 2**18


@torch.no_grad()
def outer_step(
    base: Tensor, momentum: Tensor, gradient: Tensor, *, kind: str, lr: float, momentum_coefficient: float
) -> None:
    """Update `base` and `momentum` in place; bit-equal to torch.optim.SGD (dampening 0) on CPU.

    nesterov: v = m v + g, x = x - lr (g + m v). heavy-ball: v = m v + g, x = x - lr v. sgd: x = x - lr g.
    With v = 0 before the first step this is PyTorch's first step, v = g.

    Args:
        base, momentum, gradient: flat [n], contiguous, fp32 (fp64 for oracles), one device. `gradient` is destroyed.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    check_flat_buffers(base=base, momentum=momentum, gradient=gradient)
    chunks = (torch.split(buffer, CHUNK_ELEMENTS) for buffer in (base, momentum, gradient))
    for x, v, g in zip(*chunks, strict=True):
        if kind == "sgd":
            x.add_(g, alpha=-lr)
            continue
        v.mul_(momentum_coefficient).add_(g)
        direction = g.add_(v, alpha=momentum_coefficient) if kind == "nesterov" else v
        x.add_(direction, alpha=-lr)
