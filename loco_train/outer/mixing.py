"""Mixing: a tensor replaced by a weighted mean over the peers of the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loco_kernels.block_select import Selection, gather, scatter
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
        selection = None if self.ranges is None else Selection(self.ranges)
        packed = tensor if selection is None else _gathered(tensor, selection)
        travelling = packed.to(communicator.device)
        pending = communicator.mean(travelling) if weights.is_mean else communicator.mix(travelling, row)
        if travelling is tensor:
            return pending
        return Returning(pending, lambda: _return(travelling, tensor, selection))


@dataclass(frozen=True)
class Returning:
    """An exchange whose result is copied back from the buffer that travelled."""

    pending: Pending
    copy_back: Callable[[], object]

    def wait(self) -> None:
        self.pending.wait()
        self.copy_back()


def _gathered(tensor: Tensor, selection: Selection) -> Tensor:
    packed = tensor.new_empty(selection.numel)
    gather(tensor, selection, out=packed)
    return packed


def _return(travelled: Tensor, tensor: Tensor, selection: Selection | None) -> None:
    if selection is None:
        tensor.copy_(travelled)
    else:
        scatter(travelled.to(tensor.device), selection, out=tensor)
