"""newton_schulz by torch's batched products; the iteration itself serves the Triton form too."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from loco_kernels.newton_schulz.coefficients import Step, Steps

# Long over short side from which two steps at once cost less even where no product's symmetry is used.
GRAM_RATIO = 2


class SymmetricProduct(Protocol):
    """alpha left right^T + beta add, [b, n, n], of left, right [b, n, k], where that is known to be symmetric."""

    def __call__(
        self, left: Tensor, right: Tensor, add: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0
    ) -> Tensor: ...


def newton_schulz(matrices: Tensor, out: Tensor, steps: Steps, scale: str, compute: torch.dtype) -> None:
    tiny = torch.finfo(matrices.dtype).tiny
    # Squares of elements as they come would overflow from 1e19 on, and vanish below 1e-23.
    peaks = matrices.abs().amax((1, 2), keepdim=True).clamp_(min=tiny)
    units = matrices / peaks
    norms = _norms(units)
    x = (units / norms.clamp(min=tiny)).to(compute)
    tall = x.shape[1] > x.shape[2]
    # A CPU's bf16 product into a transposed view takes 800 times as long.
    polar = iterate(x.mT.contiguous() if tall else x, steps, symmetric_product)
    polar = polar.mT if tall else polar
    if scale == "none":
        out.copy_(polar)
        return
    rank = min(matrices.shape[1:])
    factors = norms / rank**0.5 if scale == "rms" else units.mul_(polar).sum((1, 2), keepdim=True) / rank
    out.copy_(polar).mul_(peaks * factors)


def symmetric_product(
    left: Tensor, right: Tensor, add: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0
) -> Tensor:
    """A `SymmetricProduct` that computes all of it."""
    if add is None:
        return torch.bmm(left, right.mT)
    return torch.baddbmm(add, left, right.mT, beta=beta, alpha=alpha)


def iterate(x: Tensor, steps: Steps, product: SymmetricProduct) -> Tensor:
    """About the polar factors of `x` [b, m, n], m <= n, of Frobenius norm 1, in its layout; x is overwritten."""
    # Two steps at once in bf16 carry singular values to 1.35 (polar-express), and may change their sign (cans).
    at_once = 2 if x.shape[2] >= GRAM_RATIO * x.shape[1] and x.dtype != torch.bfloat16 else 1
    other = torch.empty_like(x)
    for first in range(0, len(steps), at_once):
        advance = _two_steps if len(steps[first : first + at_once]) == 2 else _step
        advance(x, *steps[first : first + at_once], product=product, out=other)
        x, other = other, x
    return x


def _step(x: Tensor, step: Step, *, product: SymmetricProduct, out: Tensor) -> None:
    """Costs 3 m^2 n + m^3 where a symmetric product costs half of another one."""
    gram = product(x, x)
    torch.baddbmm(x, _odd(gram, step, product), x, beta=step[0], out=out)


def _two_steps(x: Tensor, first: Step, second: Step, *, product: SymmetricProduct, out: Tensor) -> None:
    """Costs 3 m^2 n + 5 m^3: the Gram matrix after a step is a polynomial of the one before, and all of them commute.

    More steps at once cost less, and lose more: small eigenvalues of the Gram matrix are rounded as coarsely as large
    ones. Three in fp16 carried singular values to 1.3 (polar-express) instead of 1.12, five to 50 % of error.
    """
    gram = product(x, x)
    once = _odd(gram, first, product)
    once.diagonal(dim1=1, dim2=2).add_(first[0])
    # By `once` as it was rounded, since that is what multiplies X: by its polynomial, X and its Gram matrix would part,
    # at three times the error.
    gram = product(product(once, gram), once)
    twice = product(once, _odd(gram, second, product), add=once, beta=second[0])
    torch.bmm(twice, x, out=out)


def _odd(gram: Tensor, step: Step, product: SymmetricProduct) -> Tensor:
    _, b, c = step
    return product(gram, gram, add=gram, alpha=c, beta=b)


def _norms(matrices: Tensor) -> Tensor:
    """Frobenius norms [b, 1, 1], by rows: one running sum in fp32 over all of a matrix loses digits."""
    rows = torch.linalg.vector_norm(matrices, dim=2, keepdim=True)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norms
