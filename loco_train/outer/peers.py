"""Whom an island mixes with in a round: one weight matrix a round, the same on every island without a message.

Every matrix is symmetric and doubly stochastic, so that mixing keeps the mean of the islands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from loco_train.errors import ConfigError
from loco_train.outer.draw import Draw
from loco_train.outer.weights import Weights


class Peers(Protocol):
    """Gives a round's weights."""

    def weights(self, islands: int, draw: Draw) -> Weights: ...

    def period(self, islands: int) -> int | None:
        """After how many rounds the weights come again; None: they are drawn at random."""
        ...


@dataclass(frozen=True)
class Nobody:
    """Every island keeps its own."""

    def weights(self, islands: int, draw: Draw) -> Weights:
        return Weights.identity(islands)

    def period(self, islands: int) -> int:
        return 1


@dataclass(frozen=True)
class Everyone:
    """The mean over all islands."""

    def weights(self, islands: int, draw: Draw) -> Weights:
        return Weights.mean(islands)

    def period(self, islands: int) -> int:
        return 1


@dataclass(frozen=True)
class Ring:
    """Both neighbours on a fixed ring. self_weight: None for the plain mean over the neighbourhood."""

    self_weight: float | None = None

    def weights(self, islands: int, draw: Draw) -> Weights:
        return Weights.around({i: {(i - 1) % islands, (i + 1) % islands} for i in range(islands)}, self.self_weight)

    def period(self, islands: int) -> int:
        return 1


@dataclass(frozen=True)
class ExponentialGraph:
    """Neighbours at distances 1, 2, 4, ... on the ring: all of them every round (static), or one distance a round.

    Rotating over a power of two of islands the distance is taken by exclusive or, which gives pairs: after log2 M
    rounds of plain pair averages every island holds the mean of all.
    """

    rotating: bool
    self_weight: float | None = None

    def period(self, islands: int) -> int:
        return len(self._distances(islands)) if self.rotating else 1

    def weights(self, islands: int, draw: Draw) -> Weights:
        distances = self._distances(islands)
        if not self.rotating:
            around = {i: {(i + s * d) % islands for d in distances for s in (1, -1)} for i in range(islands)}
            return Weights.around(around, self.self_weight)
        distance = distances[draw.round % len(distances)]
        if islands & (islands - 1) == 0:
            return Weights.around(
                {i: {i ^ distance} if islands > 1 else set() for i in range(islands)}, self.self_weight
            )
        both = {i: {(i + distance) % islands, (i - distance) % islands} for i in range(islands)}
        return Weights.around(both, self.self_weight)

    @staticmethod
    def _distances(islands: int) -> list[int]:
        return [2**k for k in range(max(1, (islands - 1).bit_length()))]


@dataclass(frozen=True)
class RandomPair:
    """A random perfect matching, both sides take the average (GASLoC arXiv 2606.11081 section 3, 1-Peer).

    An odd number of islands leaves one out, each one once in M rounds. links: pairs that may meet; None for all. With
    links the matching is the largest of a few drawn ones, and may leave more islands out.
    """

    links: frozenset[frozenset[int]] | None = None
    _TRIES = 8

    def period(self, islands: int) -> None:
        return None

    def weights(self, islands: int, draw: Draw) -> Weights:
        pairs = self._free(islands, draw) if self.links is None else self._limited(islands, draw)
        partner = {i: {j} for pair in pairs for i, j in (pair, pair[::-1])}
        return Weights.around({i: partner.get(i, set()) for i in range(islands)}, None)

    def _free(self, islands: int, draw: Draw) -> list[tuple[int, int]]:
        order = draw.permutation(islands)
        if islands % 2:
            order.remove(draw.left_out(islands))
        return list(zip(order[::2], order[1::2], strict=True))

    def _limited(self, islands: int, draw: Draw) -> list[tuple[int, int]]:
        links = sorted(tuple(sorted(link)) for link in self.links or ())
        return max((_matching(links, draw.permutation(len(links), at=t)) for t in range(self._TRIES)), key=len)


@dataclass(frozen=True)
class RandomCycle:
    """Both neighbours on a random cycle through all islands (GASLoC section 3, 2-Peer).

    self_weight: None for the mean over the three (Algorithm 1), 0.5 for the paper's Laplacian with weights 1/4.
    """

    self_weight: float | None = None

    def period(self, islands: int) -> None:
        return None

    def weights(self, islands: int, draw: Draw) -> Weights:
        order = draw.permutation(islands)
        around = {order[k]: {order[k - 1], order[(k + 1) % islands]} for k in range(islands)}
        return Weights.around(around, self.self_weight)


@dataclass(frozen=True)
class Graph:
    """A fixed weighted graph, as read from a file and checked."""

    fixed: Weights

    def period(self, islands: int) -> int:
        return 1

    def weights(self, islands: int, draw: Draw) -> Weights:
        if islands != len(self.fixed.rows):
            raise ConfigError(
                "the graph does not fit the run",
                got=f"a graph of {len(self.fixed.rows)} islands, and {islands} islands",
                fix="write a graph with one row for each island",
            )
        return self.fixed


def _matching(links: list[tuple[int, ...]], order: list[int]) -> list[tuple[int, int]]:
    """A matching that no further link fits into, links taken in this order."""
    taken: set[int] = set()
    pairs = []
    for index in order:
        first, second = links[index]
        if not taken & {first, second}:
            taken |= {first, second}
            pairs.append((first, second))
    return pairs
