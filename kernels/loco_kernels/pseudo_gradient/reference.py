"""The plain twin of `pseudo_gradient`."""

from __future__ import annotations

from torch import Tensor


def pseudo_gradient_reference(base: Tensor, local: Tensor) -> tuple[Tensor, bool]:
    """(base - local, whether all of it is finite)."""
    difference = base - local
    return difference, bool(difference.isfinite().all())
