"""An outer method: `base, pseudo_gradient = sync(start, end)`, then `start' = outer_optimizer(base, pseudo_gradient)`.

A round calls, on every rank of every island in this order:

    begin_round    mix1 of the start sets out, and travels behind the inner steps
    contribution   the end becomes what travels at the outer step
    exchange       mix2 of it sets out; it is waited for, and so is mix1
    pseudo_gradient, update    the start of the next round

Only the last two change base and momentum, so a round that fails before them has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.outer.aggregators import Aggregator
from loco_train.outer.communicator import Communicator, Pending, Together
from loco_train.outer.draw import Draw
from loco_train.outer.mixing import Mix
from loco_train.outer.optimizer import OuterOptimizer
from loco_train.outer.rules import Rule
from loco_train.outer.state import OuterState


@dataclass(frozen=True)
class OuterMethod:
    """A composition of parts; see `methods.py` for the named ones.

    mix1: of the starts, overlapped. mix2: of what the rule sends, blocking. mixes_momentum: mix1 averages the momentum
    too (the S variants of arXiv 2606.22768, which that paper finds worse).
    """

    rule: Rule
    mix1: Mix
    mix2: Mix
    aggregator: Aggregator
    optimizer: OuterOptimizer
    mixes_momentum: bool = False

    def new_state(self, numel: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> OuterState:
        """Zeros, with the buffers that this method needs."""
        mixed = not self.mix1.is_nobody
        return OuterState.zeros(
            numel, device=device, dtype=dtype, mixed=mixed, mixed_momentum=mixed and self.mixes_momentum
        )

    @property
    def keeps_islands_equal(self) -> bool:
        """Whether all islands hold the same start in every round, because all take the same mean."""
        return self.mix1.is_nobody and self.mix2.mixes_all

    def begin_round(self, state: OuterState, draw: Draw, communicator: Communicator) -> Pending:
        """Start mix1. `state.base` and `state.momentum` are read until its wait."""
        parts = []
        for source, target in ((state.base, state.mixed), (state.momentum, state.mixed_momentum)):
            if target is not None:
                target.copy_(source)
                parts.append(self.mix1.start(target, draw, communicator))
        return Together(parts)

    def contribution(self, state: OuterState, end: Tensor) -> bool:
        """Turn `end` (flat [n], the parameters after the inner steps) into what travels, in place; True if finite."""
        return self.rule.contribution(state, end)

    def exchange(self, contribution: Tensor, draw: Draw, communicator: Communicator) -> Pending:
        """Start mix2 of `contribution`, in place."""
        return self.mix2.start(contribution, draw, communicator)

    def pseudo_gradient(self, state: OuterState, contribution: Tensor) -> Tensor:
        """What the outer optimizer receives, flat [n]; `state.base` becomes the base of the update. Destroys
        `contribution`.

        Every rank of an island calls it together: an aggregator may gather matrices over the island.
        """
        if state.mixed_momentum is not None:
            state.momentum.copy_(state.mixed_momentum)
        gradient = self.rule.settle(state, contribution)
        self.aggregator(gradient)
        return gradient

    def update(self, state: OuterState, gradient: Tensor) -> Tensor:
        """The outer optimizer's step: the start of the next round, flat [n]. Destroys `gradient`."""
        self.optimizer.step(state, gradient)
        return state.base
