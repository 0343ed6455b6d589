"""An outer method: `base, pseudo_gradient = sync(start, end)`, then `start' = outer_optimizer(base, pseudo_gradient)`.

A round calls `pseudo_gradient`, `exchange` and `apply` in this order. Only `apply` changes the state, so a round that
fails before it has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from loco_kernels import pseudo_gradient
from torch import Tensor

from loco_train.outer.communicator import Communicator
from loco_train.outer.parts import Aggregator, Mixing, OuterOptimizer
from loco_train.outer.state import OuterState


@dataclass(frozen=True)
class OuterMethod:
    """A composition of parts; see `methods.py` for the named ones."""

    mixing: Mixing
    aggregator: Aggregator
    optimizer: OuterOptimizer

    def pseudo_gradient(self, state: OuterState, end: Tensor) -> bool:
        """Turn `end` (flat [n], the parameters after the inner steps) into base - end, in place; True if finite."""
        return pseudo_gradient(state.base, end, out=end)

    def exchange(self, pseudo_gradient: Tensor, communicator: Communicator) -> None:
        """Replace `pseudo_gradient` by the mixed one. Blocking.

        Raises:
            TransportError: it failed; `pseudo_gradient` is undefined, the state as it was.
        """
        travelling = pseudo_gradient.to(communicator.device)
        self.mixing.start(travelling, communicator).wait()
        if travelling is not pseudo_gradient:
            pseudo_gradient.copy_(travelling)

    def apply(self, state: OuterState, pseudo_gradient: Tensor) -> None:
        """The outer step: afterwards `state.base` is the start of the next round. `pseudo_gradient` is destroyed."""
        self.optimizer.step(state, self.aggregator(pseudo_gradient))
