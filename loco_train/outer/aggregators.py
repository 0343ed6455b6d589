"""Aggregators: what is made of the mixed pseudo-gradient before the outer optimizer takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Aggregator(Protocol):
    """Changes the pseudo-gradient (flat [n]) in place. Collective over the island."""

    def __call__(self, pseudo_gradient: Tensor) -> None: ...


class Matrices(Protocol):
    """The logical matrices of an island, wherever its ranks hold their parts."""

    def transform(self, flat: Tensor, function: Callable[[Tensor], Tensor]) -> None:
        """Replace every logical matrix [m, n] of `flat` by function(matrix), in place; vectors stay as they are.

        Each matrix is whole over tensor parallelism and ZeRO, q, k, v and gate, up apart, without vocabulary padding,
        and is computed on one rank. Collective over the island.
        """


@dataclass(frozen=True)
class Unchanged:
    """The aggregator that leaves the mean as it is."""

    def __call__(self, pseudo_gradient: Tensor) -> None:
        pass


@dataclass(frozen=True)
class PerMatrix:
    """Every logical matrix by itself; vectors keep the mean."""

    matrices: Matrices
    function: Callable[[Tensor], Tensor]

    def __call__(self, pseudo_gradient: Tensor) -> None:
        self.matrices.transform(pseudo_gradient, self.function)
