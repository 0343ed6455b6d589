"""The parts that outer methods are composed of: who is averaged with, what is made of the mean, and the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from loco_kernels import outer_step
from torch import Tensor

from loco_train.outer.communicator import Communicator, Pending
from loco_train.outer.state import OuterState


class Mixing(Protocol):
    """Replaces this island's pseudo-gradient by one mixed with other islands'."""

    def start(self, pseudo_gradient: Tensor, communicator: Communicator) -> Pending: ...


class Aggregator(Protocol):
    """Makes of the mixed pseudo-gradient (flat [n]) what the outer optimizer receives; may work in place."""

    def __call__(self, pseudo_gradient: Tensor) -> Tensor: ...


class OuterOptimizer(Protocol):
    """Updates base and momentum in place; may destroy the pseudo-gradient."""

    def step(self, state: OuterState, pseudo_gradient: Tensor) -> None: ...


@dataclass(frozen=True)
class MeanOverAll:
    """The mean over all islands."""

    def start(self, pseudo_gradient: Tensor, communicator: Communicator) -> Pending:
        return communicator.mean(pseudo_gradient)


@dataclass(frozen=True)
class Unchanged:
    """The aggregator that leaves the mean as it is."""

    def __call__(self, pseudo_gradient: Tensor) -> Tensor:
        return pseudo_gradient


@dataclass(frozen=True)
class MomentumSGD:
    """SGD with Nesterov or heavy-ball momentum, or none, as torch.optim.SGD computes it.

    kind: nesterov, heavy-ball or sgd.
    """

    kind: str
    lr: float
    momentum: float

    def step(self, state: OuterState, pseudo_gradient: Tensor) -> None:
        outer_step(
            state.base,
            state.momentum,
            pseudo_gradient,
            kind=self.kind,
            lr=self.lr,
            momentum_coefficient=self.momentum,
        )
