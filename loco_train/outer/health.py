"""Consensus health: how differently the islands' models speak (Factored Gossip, arXiv 2606.22768, JS distance).

The distance of an island from the consensus is sqrt(JS(p, q) / log 2), p its and q the consensus' distribution of the
next token, averaged over positions. Only the consensus' most probable tokens are told apart; the others of both are one
rest, so that both still sum to 1. (Cut off without the rest, distances above 1 appear, as in the paper's figures.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TOP_TOKENS = 100


@dataclass(frozen=True)
class Speech:
    """What a model says at each position, as far as it counts: a hundred numbers instead of a whole vocabulary.

    tokens: its most probable ones, [positions, top]. logs: fp64 log probabilities of these and of all the rest
    together, [positions, top + 1].
    """

    tokens: Tensor
    logs: Tensor

    @staticmethod
    def of(logits: Tensor, *, top: int = TOP_TOKENS) -> Speech:
        """logits: [positions, vocabulary], any float dtype."""
        tokens = logits.topk(min(top, logits.shape[1]), dim=1).indices
        return Speech(tokens, _log_distribution(logits.double(), tokens))


def js_distances(island_logits: Tensor, consensus: Speech) -> Tensor:
    """The Jensen-Shannon distance in [0, 1] at each position, fp64.

    island_logits: [positions, vocabulary], any float dtype.
    """
    p, q = _log_distribution(island_logits.double(), consensus.tokens), consensus.logs
    middle = torch.logaddexp(p, q) - math.log(2)
    divergence = 0.5 * (_kl(p, middle) + _kl(q, middle))
    # Rounding may leave a zero a little below zero.
    return (divergence / math.log(2)).clamp(0, 1).sqrt()


def js_distance(island_logits: Tensor, consensus_logits: Tensor, *, top: int = TOP_TOKENS) -> Tensor:
    """Mean over positions of the Jensen-Shannon distance in [0, 1], a scalar in fp64.

    island_logits, consensus_logits: [positions, vocabulary], any float dtype.
    """
    return js_distances(island_logits, Speech.of(consensus_logits, top=top)).mean()


def _log_distribution(logits: Tensor, chosen: Tensor) -> Tensor:
    """Log probabilities of the chosen tokens and of all the rest together, [positions, chosen + 1]."""
    logs = logits.log_softmax(dim=1)
    kept = logs.gather(1, chosen)
    rest = logs.scatter(1, chosen, -torch.inf).logsumexp(dim=1, keepdim=True)
    return torch.cat([kept, rest], dim=1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Kullback-Leibler divergence of rows of log probabilities; what has no probability adds nothing."""
    return (p.exp() * (p - q).masked_fill(p == -torch.inf, 0)).sum(dim=1)


def l2_distance(parameters: Tensor) -> Tensor:
    """Mean distance of the islands' parameters [M, n] from their mean, in fp64."""
    wide = parameters.double()
    distance: Tensor = (wide - wide.mean(0)).norm(dim=1).mean()
    return distance
