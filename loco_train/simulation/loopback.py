"""The network of a simulation: islands of one process that hand each other their tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from loco_kernels import mix
from torch import Tensor

from loco_train.errors import TransportError


@dataclass
class _Phase:
    """What the islands handed in between two calls of `next_phase`: by island and number of its call."""

    handed: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)

    def of(self, islands: Sequence[int], call: int) -> list[Tensor]:
        absent = [island for island in islands if (island, call) not in self.handed]
        if absent:
            raise TransportError(f"island {', '.join(map(str, absent))} handed in nothing to exchange")
        return [self.handed[island, call] for island in islands]


@dataclass
class Hub:
    """Joins the communicators of all islands. They start an exchange in one phase, each, and wait for it afterwards.

    down: pairs of islands that cannot exchange now.
    """

    count: int
    down: frozenset[frozenset[int]] = frozenset()
    phase: _Phase = field(default_factory=_Phase)

    def next_phase(self) -> None:
        self.phase = _Phase()

    def communicators(self) -> list[Loopback]:
        return [Loopback(index, self) for index in range(self.count)]


@dataclass
class Loopback:
    """One island's `loco_train.outer.Communicator`."""

    index: int
    hub: Hub
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    bytes_sent: int = 0

    @property
    def count(self) -> int:
        return self.hub.count

    @property
    def down(self) -> frozenset[frozenset[int]]:
        return self.hub.down

    def mean(self, tensor: Tensor) -> LoopbackPending:
        """See `Communicator`; costs what a ring all-reduce costs."""
        self.bytes_sent += 2 * (self.count - 1) * tensor.numel() * tensor.element_size() // self.count
        return self._hand_in(tensor, dict.fromkeys(range(self.count), 1.0), divisor=self.count)

    def gather(self, tensor: Tensor, out: Tensor) -> LoopbackGather:
        """See `Communicator`."""
        self.bytes_sent += (self.count - 1) * tensor.numel() * tensor.element_size()
        phase, call = self._handed(tensor)
        return LoopbackGather(phase, call, out)

    def mix(self, tensor: Tensor, weights: Mapping[int, float]) -> LoopbackPending:
        """See `Communicator`."""
        self.bytes_sent += (len(weights) - 1) * tensor.numel() * tensor.element_size()
        return self._hand_in(tensor, weights, divisor=1)

    def _hand_in(self, tensor: Tensor, weights: Mapping[int, float], *, divisor: int) -> LoopbackPending:
        phase, call = self._handed(tensor)
        return LoopbackPending(phase, call, tensor, weights, divisor)

    def _handed(self, tensor: Tensor) -> tuple[_Phase, int]:
        phase = self.hub.phase
        call = phase.calls.get(self.index, 0)
        phase.calls[self.index] = call + 1
        phase.handed[self.index, call] = tensor.clone()
        return phase, call


@dataclass(frozen=True)
class LoopbackPending:
    """See `Pending`."""

    phase: _Phase
    call: int
    tensor: Tensor
    weights: Mapping[int, float]
    divisor: int

    def wait(self) -> None:
        order = sorted(self.weights)
        mix(self.phase.of(order, self.call), [self.weights[island] for island in order], out=self.tensor)
        if self.divisor != 1:
            self.tensor.div_(self.divisor)


@dataclass(frozen=True)
class LoopbackGather:
    """See `Pending`."""

    phase: _Phase
    call: int
    out: Tensor

    def wait(self) -> None:
        for row, tensor in zip(self.out, self.phase.of(range(len(self.out)), self.call), strict=True):
            row.copy_(tensor)
