"""What travels at the outer step, and what base and pseudo-gradient are made of it: where the methods differ.

With start and end of a round, `mixed` the start as mix1 left it, and M2 the mixing of the outer step:

    rule           base     pseudo-gradient
    FromProgress   mixed    M2(start - end)       DiLoCo, IsoLoCo, Factored Gossip (arXiv 2606.22768, Algorithm 1)
    FromEnds       start    start - M2(end)       GASLoC (arXiv 2606.11081, Algorithm 1)
    FromStarts     end      start - mixed         Local-DAdam (arXiv 2606.11081, appendix)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from loco_kernels import pseudo_gradient
from torch import Tensor

from loco_train.outer.state import OuterState


class Rule(Protocol):
    def contribution(self, state: OuterState, end: Tensor) -> bool:
        """Turn `end` (flat [n]) into what travels, in place; True if it is finite."""

    def settle(self, state: OuterState, travelled: Tensor) -> Tensor:
        """Set `state.base` to the base of the update; the pseudo-gradient. Destroys `travelled` and `state.mixed`."""


@dataclass(frozen=True)
class FromProgress:
    """The islands' progress is averaged, and applied at the mixed start."""

    def contribution(self, state: OuterState, end: Tensor) -> bool:
        return pseudo_gradient(state.base, end, out=end).finite

    def settle(self, state: OuterState, travelled: Tensor) -> Tensor:
        if state.mixed is not None:
            state.base.copy_(state.mixed)
        return travelled


@dataclass(frozen=True)
class FromEnds:
    """The islands' ends are averaged; the own start stays the base, so that consensus passes through the momentum."""

    def contribution(self, state: OuterState, end: Tensor) -> bool:
        return end.numel() == 0 or bool(torch.stack(torch.aminmax(end)).isfinite().all())

    def settle(self, state: OuterState, travelled: Tensor) -> Tensor:
        pseudo_gradient(state.base, travelled, out=travelled)
        return travelled


@dataclass(frozen=True)
class FromStarts:
    """The own end is the base; the outer optimizer moves it by the disagreement of the starts. Needs mix1."""

    def contribution(self, state: OuterState, end: Tensor) -> bool:
        return FromEnds().contribution(state, end)

    def settle(self, state: OuterState, travelled: Tensor) -> Tensor:
        assert state.mixed is not None, "composed with a mix1"
        pseudo_gradient(state.base, state.mixed, out=state.mixed)
        state.base.copy_(travelled)
        return state.mixed
