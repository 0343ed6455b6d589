"""Mixing: a tensor replaced by a weighted mean over the peers of the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.outer.communicator import Communicator, Pending, Together
from loco_train.outer.draw import Draw
from loco_train.outer.peers import Everyone, Nobody, Peers
from loco_train.outer.weights import Weights

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Mix:
    """Who mixes, and which part of the flat buffer.

    purpose: so that two mixings of one round draw different random peers.
    ranges: [first, end) each; they travel as one contiguous buffer, the rest stays the island's own. None: all of it.
    """

    peers: Peers
    purpose: str
    ranges: Ranges | None = None

    @property
    def is_nobody(self) -> bool:
        return isinstance(self.peers, Nobody)

    @property
    def mixes_all(self) -> bool:
        """Whether everything becomes the mean of all islands."""
        return isinstance(self.peers, Everyone) and self.ranges is None

    def weights(self, islands: int, draw: Draw) -> Weights:
        """Of this round, before failures."""
        return self.peers.weights(islands, draw.for_purpose(self.purpose))

    def start(self, tensor: Tensor, draw: Draw, communicator: Communicator) -> Pending:
        """Start mixing `tensor` (flat [n], on any device) in place."""
        weights = self.weights(communicator.count, draw).without(communicator.down)
        row = weights.rows[communicator.index]
        if row.keys() == {communicator.index}:
            return Together()
        parts = [tensor] if self.ranges is None else [tensor[first:end] for first, end in self.ranges]
        travelling = _in_one_piece(parts, communicator.device)
        pending = communicator.mean(travelling) if weights.is_mean else communicator.mix(travelling, row)
        return pending if travelling is tensor else Returning(pending, travelling, parts)


@dataclass(frozen=True)
class Returning:
    """An exchange whose result is copied back from the buffer that travelled."""

    pending: Pending
    travelling: Tensor
    parts: Sequence[Tensor]

    def wait(self) -> None:
        self.pending.wait()
        for part, mixed in zip(self.parts, torch.split(self.travelling, [len(p) for p in self.parts]), strict=True):
            part.copy_(mixed)


def _in_one_piece(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """The tensor itself where it is one and lies there already; an empty one for a rank that owns no part."""
    if len(parts) == 1:
        return parts[0].to(device)
    return torch.cat([part.to(device) for part in parts]) if parts else torch.zeros(0, device=device)
