"""Aggregators: what is made of the islands' progress before the outer optimizer takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from loco_train.outer.draw import Draw
from loco_train.outer.random_drop import RandomDrop


class Aggregator(Protocol):
    """needs_each: whether it takes every island's contribution by itself, in place of what mix2 made of them."""

    @property
    def needs_each(self) -> bool: ...

    def before(self, contribution: Tensor, draw: Draw, island: int) -> None:
        """Change what this island sends (flat [n]) in place."""

    def __call__(self, pseudo_gradient: Tensor, each: Tensor | None) -> None:
        """Change the pseudo-gradient (flat [n]) in place. Collective over the island.

        each: [M, n], the islands' contributions, where they are needed; destroyed.
        """


class Matrices(Protocol):
    """The logical matrices of an island, wherever its ranks hold their parts."""

    def merge(self, stack: Tensor, function: Callable[[Tensor], Tensor], *, out: Tensor) -> None:
        """Write function(matrices [K, m, n]) into each logical matrix [m, n] of `out` (flat [n]); its vectors stay.

        stack: [K, n], of which row k holds the k-th of the matrices; it may be `out` itself as [1, n].

        Each matrix is whole over tensor parallelism and ZeRO, q, k, v and gate, up apart, without vocabulary padding,
        and is computed on one rank. Collective over the island.
        """


@dataclass(frozen=True)
class Unchanged:
    """The aggregator that leaves the mean as it is."""

    needs_each = False

    def before(self, contribution: Tensor, draw: Draw, island: int) -> None:
        pass

    def __call__(self, pseudo_gradient: Tensor, each: Tensor | None) -> None:
        pass


@dataclass(frozen=True)
class PerMatrix(Unchanged):
    """Every logical matrix of the mean by itself, [m, n] to [m, n]; vectors keep the mean."""

    matrices: Matrices
    function: Callable[[Tensor], Tensor]

    def __call__(self, pseudo_gradient: Tensor, each: Tensor | None) -> None:
        self.matrices.merge(pseudo_gradient[None], lambda stack: self.function(stack[0]), out=pseudo_gradient)


@dataclass(frozen=True)
class PerStack(Unchanged):
    """The islands' matrices merged into one, [M, m, n] to [m, n]; of vectors the mean is taken.

    Costs 4 M bytes a parameter over the island, and sends (M - 1) times the model where a mean sends twice.
    """

    matrices: Matrices
    function: Callable[[Tensor], Tensor]
    needs_each = True

    def __call__(self, pseudo_gradient: Tensor, each: Tensor | None) -> None:
        assert each is not None, "gathered by the method, since needs_each"
        # Summed in the order of the islands, and not by mean(): on every island the same bits.
        pseudo_gradient.copy_(each[0])
        for contribution in each[1:]:
            pseudo_gradient.add_(contribution)
        pseudo_gradient.div_(len(each))
        self.matrices.merge(each, self.function, out=pseudo_gradient)


@dataclass(frozen=True)
class Dropped(Unchanged):
    """DARE (arXiv 2311.03099): each island sends a random part of its progress, rescaled; then the mean."""

    drop: RandomDrop

    def before(self, contribution: Tensor, draw: Draw, island: int) -> None:
        self.drop(contribution, draw, island)
