"""pseudo_gradient: base - local with descent sign, and whether it is finite, without a second buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from loco_kernels.checks import check_flat_buffers
from loco_kernels.pseudo_gradient.reference import pseudo_gradient_reference as pseudo_gradient_reference


@torch.no_grad()
def pseudo_gradient(base: Tensor, local: Tensor, *, out: Tensor) -> bool:
    """Write `base - local` (DiLoCo, arXiv 2311.08105: start minus end) to `out`; True if all of it is finite.

    Args:
        base, local, out: flat [n], contiguous, fp32 (fp64 for oracles), one device; `out` may be `local`.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    check_flat_buffers(base=base, local=local, out=out)
    torch.sub(base, local, out=out)
    # The smallest and the largest propagate NaN and show infinities: no temporary of the buffer's size.
    return out.numel() == 0 or bool(torch.stack(torch.aminmax(out)).isfinite().all())
