"""Islands in lock-step: the rounds of a method, every island's call before any island's wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loco_train.errors import NonFinite
from loco_train.outer import Draw, OuterMethod, OuterState
from loco_train.simulation.loopback import Hub, Loopback

# (round, starts [M, n]) to ends [M, n], which must not share memory with the starts.
InnerSteps = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Round:
    """What a round was made of: start, end, base, pseudo_gradient [M, n] each; mix1, mix2 [M, M] as they were used."""

    start: Tensor
    end: Tensor
    base: Tensor
    pseudo_gradient: Tensor
    mix1: Tensor
    mix2: Tensor


@dataclass
class LockStep:
    """The islands of a simulation.

    states, starts: of each island; its start is that of the next round, [n].
    """

    method: OuterMethod
    states: Sequence[OuterState]
    starts: Sequence[Tensor]
    seed: int
    hub: Hub = field(init=False)
    communicators: list[Loopback] = field(init=False)

    def __post_init__(self) -> None:
        self.hub = Hub(len(self.states))
        self.communicators = self.hub.communicators()

    @staticmethod
    def from_start(method: OuterMethod, start: Tensor, *, islands: int, seed: int) -> LockStep:
        """All islands at `start` (flat [n], fp32 or fp64)."""
        states = [method.new_state(start.numel(), device=start.device, dtype=start.dtype) for _ in range(islands)]
        for state in states:
            state.base.copy_(start)
        return LockStep(method, states, [state.base for state in states], seed)

    @property
    def parameters(self) -> Tensor:
        """The islands' parameters between rounds, [M, n]."""
        return torch.stack(list(self.starts))

    @torch.no_grad()
    def round(self, number: int, inner_steps: InnerSteps, *, failed: Collection[frozenset[int]] = ()) -> Round:
        """One round. failed: pairs of islands that cannot exchange in it.

        Raises:
            NonFinite: an island's parameters after its inner steps; nothing was changed.
        """
        draw, method = Draw(self.seed, number), self.method
        self.hub.down = frozenset(failed)
        each = list(zip(self.states, self.communicators, strict=True))
        start = self.parameters
        self.hub.next_phase()
        pending = [method.begin_round(state, draw, communicator) for state, communicator in each]
        with torch.enable_grad():
            end = inner_steps(number, start)
        travelling = list(end.clone().unbind())
        for island, state in enumerate(self.states):
            if not method.contribution(state, travelling[island]):
                raise NonFinite(f"round {number}: NaN or infinity in the parameters of island {island}")
        self.hub.next_phase()
        pending += [method.exchange(s, t, draw, c) for t, (s, c) in zip(travelling, each, strict=True)]
        for exchange in pending:
            exchange.wait()
        gradients = [method.pseudo_gradient(s, t, draw) for s, t in zip(self.states, travelling, strict=True)]
        used = [weights.without(self.hub.down).matrix for weights in method.weights(len(each), draw)]
        base = torch.stack([state.base for state in self.states])
        record = Round(start, end, base, torch.stack(gradients), *used)
        self.starts = [
            method.update(state, gradient, t, draw)
            for state, gradient, t in zip(self.states, gradients, travelling, strict=True)
        ]
        return record


def no_failures(number: int) -> Collection[frozenset[int]]:
    """No exchange fails in any round."""
    return ()
