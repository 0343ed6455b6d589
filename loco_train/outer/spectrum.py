"""How fast peers bring islands together: contraction and spectral gap of their weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.outer.draw import Draw
from loco_train.outer.peers import Peers

# The mean of W^2 over so many rounds is within about 2 % of its expectation for up to 128 islands.
_SAMPLED_ROUNDS = 1000


@dataclass(frozen=True)
class Topology:
    """contraction: by which the squared disagreement shrinks in a round of mixing, in expectation, at the worst; 0: all
    agree after one round, 1: some never do. chi: 1 / the smallest nonzero eigenvalue of I - E W (GASLoC, arXiv
    2606.11081, section 2); infinite where the islands never agree. links: pairs that exchange in a round, on average.
    rounds: how many the means were taken over.
    """

    contraction: float
    chi: float
    links: float
    rounds: int


def measure(peers: Peers, *, islands: int, seed: int) -> Topology:
    """Of `peers` among so many islands."""
    rounds = _SAMPLED_ROUNDS if peers.varies else 1
    mean, squares, links = (torch.zeros(islands, islands, dtype=torch.float64) for _ in range(3))
    for number in range(rounds):
        weights = peers.weights(islands, Draw(seed, number)).matrix
        mean += weights / rounds
        squares += weights @ weights / rounds
        links += (weights.triu(1) > 0) / rounds
    if islands == 1:
        return Topology(0.0, 1.0, 0.0, rounds)
    gap = 1 - _largest_apart_from_mean(mean)
    # A gap of rounding is none: islands in two parts that never meet.
    chi = 1 / gap if gap > islands * torch.finfo(torch.float64).eps else float("inf")
    return Topology(max(0.0, _largest_apart_from_mean(squares)), chi, float(links.sum()), rounds)


def _largest_apart_from_mean(matrix: Tensor) -> float:
    """The largest eigenvalue on the vectors that sum to zero; the constant vector's, 1, is taken out."""
    return float(torch.linalg.eigvalsh(matrix - 1 / len(matrix)).max())
