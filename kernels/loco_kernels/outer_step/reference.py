"""The plain twin of `outer_step`."""

from __future__ import annotations

from torch import Tensor


def outer_step_reference(
    base: Tensor, momentum: Tensor, gradient: Tensor, *, kind: str, lr: float, momentum_coefficient: float
) -> tuple[Tensor, Tensor]:
    """New (base, momentum), out of place: v' = m v + g; x' = x - lr (g + m v'), v' or g by `kind`."""
    if kind == "sgd":
        return base - lr * gradient, momentum
    velocity = momentum_coefficient * momentum + gradient
    direction = gradient + momentum_coefficient * velocity if kind == "nesterov" else velocity
    return base - lr * direction, velocity
