"""An outer method: `base, pseudo_gradient = sync(start, end)`, then `start' = outer_optimizer(base, pseudo_gradient)`.

A round calls, on every rank of every island in this order:

    begin_round    what travels behind the inner steps sets out: mix1 of the start
    contribution   the end becomes what travels at the outer step
    exchange       mix2 of it sets out; it is waited for, and so is mix1
    pseudo_gradient, update    the start of the next round

Only the last two change base and momentum, so a round that fails before them has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from loco_train.outer.aggregators import Aggregator, Unchanged
from loco_train.outer.communicator import Communicator, Pending, Together
from loco_train.outer.draw import Draw
from loco_train.outer.mixing import Mix, Returning
from loco_train.outer.optimizer import OuterOptimizer
from loco_train.outer.rules import Rule
from loco_train.outer.state import OuterState
from loco_train.outer.weights import Weights


class OuterMethod(Protocol):
    """What trainer and simulator need of a method."""

    @property
    def keeps_islands_equal(self) -> bool:
        """Whether all islands hold the same start in every round, because all take the same mean."""

    @property
    def keeps_bases_equal(self) -> bool:
        """Whether they hold the same base, whatever their starts."""

    @property
    def gives_mean(self) -> bool:
        """Whether the pseudo-gradient is the mean of the islands' progress, as it is."""

    @property
    def sends_behind(self) -> bool:
        """Whether anything travels behind the inner steps."""

    def new_state(self, numel: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> OuterState:
        """Zeros, with the buffers that this method needs."""

    def weights(self, islands: int, draw: Draw) -> tuple[Weights, Weights]:
        """Of a round's exchanges behind the inner steps and at the outer step, before failures."""

    def begin_round(self, state: OuterState, draw: Draw, communicator: Communicator) -> Pending:
        """Start what travels behind the inner steps. What of `state` is saved is read until its wait."""

    def contribution(self, state: OuterState, end: Tensor) -> bool:
        """Turn `end` (flat [n], the parameters after the inner steps) into what travels, in place; True if finite."""

    def exchange(self, state: OuterState, contribution: Tensor, draw: Draw, communicator: Communicator) -> Pending:
        """Start the exchange of the outer step, of `contribution` in place."""

    def pseudo_gradient(self, state: OuterState, contribution: Tensor, draw: Draw) -> Tensor:
        """What the outer optimizer receives, flat [n]; `state.base` becomes the base of the update.

        It may lie in `contribution`, or in a buffer of `state`. Every rank of an island calls it together: an
        aggregator may gather matrices over the island.
        """

    def update(self, state: OuterState, gradient: Tensor, contribution: Tensor, draw: Draw) -> Tensor:
        """The outer optimizer's step: the start of the next round, flat [n].

        contribution: as `pseudo_gradient` left it. Destroys it and `gradient`.
        """


@dataclass(frozen=True)
class MixingMethod:
    """A composition of parts; see `methods.py` for the named ones.

    mix1: of the starts, overlapped. mix2: of what the rule sends, blocking. mixes_momentum: mix1 averages the momentum
    too (the S variants of arXiv 2606.22768, which that paper finds worse).
    shares: of each island, what its progress is multiplied by, so that a mean of the islands is a mean of what they
        have done; their mean is 1. None: every island counts the same.
    """

    rule: Rule
    mix1: Mix
    mix2: Mix
    aggregator: Aggregator
    optimizer: OuterOptimizer
    islands: int
    mixes_momentum: bool = False
    shares: Sequence[float] | None = None

    def new_state(self, numel: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> OuterState:
        """See `OuterMethod`, as for all that follow."""
        return OuterState.zeros(
            numel,
            device=device,
            dtype=dtype,
            mixed=self.sends_behind,
            mixed_momentum=self.sends_behind and self.mixes_momentum,
            each=self.islands if self.aggregator.needs_each else 0,
        )

    @property
    def keeps_islands_equal(self) -> bool:
        return self.mix1.is_nobody and self.mix2.mixes_all

    @property
    def keeps_bases_equal(self) -> bool:
        return self.keeps_islands_equal

    @property
    def gives_mean(self) -> bool:
        return self.keeps_islands_equal and self.aggregator == Unchanged() and self.shares is None

    @property
    def sends_behind(self) -> bool:
        return not self.mix1.is_nobody

    def weights(self, islands: int, draw: Draw) -> tuple[Weights, Weights]:
        return self.mix1.weights(islands, draw), self.mix2.weights(islands, draw)

    def begin_round(self, state: OuterState, draw: Draw, communicator: Communicator) -> Pending:
        parts = []
        for source, target in ((state.base, state.mixed), (state.momentum, state.mixed_momentum)):
            if target is not None:
                target.copy_(source)
                parts.append(self.mix1.start(target, draw, communicator))
        return Together(parts)

    def contribution(self, state: OuterState, end: Tensor) -> bool:
        return self.rule.contribution(state, end)

    def exchange(self, state: OuterState, contribution: Tensor, draw: Draw, communicator: Communicator) -> Pending:
        self.aggregator.before(contribution, draw, communicator.index)
        if self.shares is not None:
            contribution.mul_(self.shares[communicator.index])
        if state.each is None:
            return self.mix2.start(contribution, draw, communicator)
        return self._gather(contribution, state.each, draw, communicator)

    def _gather(self, contribution: Tensor, each: Tensor, draw: Draw, communicator: Communicator) -> Pending:
        if not self.mix2.weights(communicator.count, draw).without(communicator.down).is_mean:
            each.copy_(contribution.expand_as(each))  # as where a mean cannot be had: everyone stays with its own
            return Together()
        arriving = each.to(communicator.device)
        pending = communicator.gather(contribution.to(communicator.device), arriving)
        return pending if arriving is each else Returning(pending, lambda: each.copy_(arriving))

    def pseudo_gradient(self, state: OuterState, contribution: Tensor, draw: Draw) -> Tensor:
        if state.mixed_momentum is not None:
            state.momentum.copy_(state.mixed_momentum)
        gradient = self.rule.settle(state, contribution)
        self.aggregator(gradient, state.each)
        return gradient

    def update(self, state: OuterState, gradient: Tensor, contribution: Tensor, draw: Draw) -> Tensor:
        self.optimizer.step(state, gradient)
        return state.base
