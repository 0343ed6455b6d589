"""How fast peers bring islands together: contraction and spectral gap of their weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.outer.draw import Draw
from loco_train.outer.peers import Peers, RandomPair
from loco_train.outer.weights import Weights

# Only random pairs that are limited to links are sampled; tests/outer/test_spectrum.py holds how near this comes.
_SAMPLED_ROUNDS = 2000


@dataclass(frozen=True)
class Topology:
    """contraction: by which the squared disagreement shrinks in a round of mixing, in expectation over random peers and
    on average over rotating ones, at the worst; 0: all agree after one round, 1: some never do. chi: 1 / the smallest
    nonzero eigenvalue of I - E W (GASLoC, arXiv 2606.11081, section 2); infinite where the islands never agree. links:
    pairs that exchange in a round, on average. sampled: how many rounds were drawn to estimate them; 0: they are exact.
    """

    contraction: float
    chi: float
    links: float
    sampled: int


def measure(peers: Peers, *, islands: int, seed: int) -> Topology:
    """Of `peers` among so many islands."""
    period = peers.period(islands)
    if period is not None:
        return _of_rounds([peers.weights(islands, Draw(seed, number)) for number in range(period)])
    if isinstance(peers, RandomPair) and peers.links is not None:
        return _of_rounds([peers.weights(islands, Draw(seed, number)) for number in range(_SAMPLED_ROUNDS)], drawn=True)
    return _of_random_order(peers.weights(islands, Draw(seed, 0)))


def _of_rounds(rounds: list[Weights], *, drawn: bool = False) -> Topology:
    """Of rounds that all count alike: one that is always the same, all of a rotation, or many that were drawn."""
    size = len(rounds[0].rows)
    mean, squares = (torch.zeros(size, size, dtype=torch.float64) for _ in range(2))
    for matrix in (weights.matrix for weights in rounds):
        mean += matrix
        squares += matrix @ matrix
    mean, squares = mean / len(rounds), squares / len(rounds)
    links = sum(map(_pairs, rounds)) / len(rounds)
    return Topology(max(0.0, _second(squares)), _chi(_second(mean), size), links, len(rounds) if drawn else 0)


def _of_random_order(weights: Weights) -> Topology:
    """Of weights that the islands are put into in a uniformly random order, which makes all directions alike: E W and
    E W^2 have one eigenvalue apart from the constant vector's, which is 1, and the trace, which no order changes, tells
    it.
    """
    size, matrix = len(weights.rows), weights.matrix
    others = max(1, size - 1)
    mean, square = (float((m.trace() - 1) / others) for m in (matrix, matrix @ matrix))
    return Topology(square, _chi(mean, size), float(_pairs(weights)), 0)


def _chi(second: float, size: int) -> float:
    # A gap of rounding is none: islands in two parts that never meet.
    gap = 1 - second
    return 1 / gap if gap > size * torch.finfo(torch.float64).eps else float("inf")


def _second(matrix: Tensor) -> float:
    """The largest eigenvalue on the vectors that sum to zero; the constant vector's, 1, is moved below all others."""
    return float(torch.linalg.eigvalsh(matrix - 3 / len(matrix)).max()) if len(matrix) > 1 else 0.0


def _pairs(weights: Weights) -> int:
    return sum(len(weights.neighbours(island)) for island in range(len(weights.rows))) // 2
