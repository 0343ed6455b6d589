"""The outer optimizers: the update of base and momentum by the pseudo-gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from loco_kernels import outer_step
from torch import Tensor

from loco_train.outer.state import OuterState


class OuterOptimizer(Protocol):
    """Updates base and momentum in place; may destroy the pseudo-gradient."""

    def step(self, state: OuterState, pseudo_gradient: Tensor) -> None: ...


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
