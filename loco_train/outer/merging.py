"""Aggregators that take every island's matrix by itself, [M, m, n] to [m, n]: methods from the merging of models.

What IsoLoCo (arXiv 2607.03011, section on aggregation) compares itself with. There the merged thing is a model minus
its ancestor; here it is the progress of a round. All are scaled so that equal islands give what one of them
has, less what is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.outer.iso import null_directions, svd


@dataclass(frozen=True)
class Ties:
    """TIES (arXiv 2306.01708): trim, elect a sign for each element, mean of those that have it.

    trimmed: the share of each island's smallest elements that is set to zero, counted in each matrix by itself, so
    that no matrix of small elements is trimmed away whole.
    """

    trimmed: float

    def __call__(self, stack: Tensor) -> Tensor:
        """Zero where nothing is left."""
        kept = torch.stack([self._trim(matrix) for matrix in stack])
        sign = kept.sum(0).sign()
        agreeing = kept.sign() == sign
        return (kept * agreeing).sum(0) / (agreeing & (kept != 0)).sum(0).clamp(min=1)

    def _trim(self, matrix: Tensor) -> Tensor:
        count = int(self.trimmed * matrix.numel())
        if count == 0:
            return matrix
        threshold = matrix.abs().flatten().kthvalue(count).values
        return matrix.masked_fill(matrix.abs() <= threshold, 0)


def tsv_m(stack: Tensor) -> Tensor:
    """TSV-Merge (arXiv 2412.00081): each island's first min(m, n) / M singular directions (at least one), made
    orthogonal to those of the others."""
    islands, rank = len(stack), min(stack.shape[1:])
    directions = [_first(matrix, max(1, rank // islands)) for matrix in stack]
    u, s, v = (torch.cat(parts, dim=d) for parts, d in zip(zip(*directions, strict=True), (1, 0, 0), strict=True))
    return (_orthogonal(u) * s) @ _orthogonal(v)


@dataclass(frozen=True)
class IsoCTS:
    """Iso-CTS (arXiv 2502.04959): directions of the mean, then of what each island has outside of them; made
    orthogonal, with one singular value for all.

    common: the share of the min(m, n) directions that the mean gets; the rest is split evenly over the islands, and
    what is left of the division goes to the mean.
    """

    common: float

    def __call__(self, stack: Tensor) -> Tensor:
        islands, rank = len(stack), min(stack.shape[1:])
        own = (rank - round(self.common * rank)) // islands
        mean_u, mean_s, mean_v = _first(stack.mean(0), rank - own * islands)
        each = [_first((matrix - mean_u @ (mean_u.T @ matrix)) / islands, own) for matrix in stack]
        u = torch.cat([mean_u, *(part[0] for part in each)], dim=1)
        v = torch.cat([mean_v, *(part[2] for part in each)])
        value = torch.cat([mean_s, *(part[1] for part in each)]).mean()
        return value * _orthogonal(u) @ _orthogonal(v)


def _first(matrix: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `count` singular directions: U [m, count], values [count], V^T [count, n]; null ones are zero."""
    u, s, v = svd(matrix)
    kept = (~null_directions(s, matrix)).to(matrix.dtype)
    return (u * kept)[:, :count], (s * kept)[:count], (v * kept[:, None])[:count]


def _orthogonal(directions: Tensor) -> Tensor:
    """The nearest matrix whose singular values are 1 where those of `directions` are not null, else 0."""
    u, s, v = svd(directions)
    kept = ~null_directions(s, directions)
    return u[:, kept] @ v[kept]
