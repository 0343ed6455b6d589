"""Streaming DiLoCo (arXiv 2501.18512, Algorithm 2): one fragment of the model at a time, behind the inner steps.

A round is H / P inner steps of P fragments. At its end fragment r mod P sets out with what was made of it since it was
last synchronised; it travels behind the inner steps of the next round, at whose end it lands: the mean goes through
the outer optimizer into the fragment's base, and the island's parameters move part of the way to it. So each fragment
is synchronised every P rounds, with an overlap of one round (the paper's tau).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from loco_kernels import mix, pseudo_gradient
from torch import Tensor

from loco_train.blocks import block_of
from loco_train.outer.communicator import Communicator, Pending, Together
from loco_train.outer.draw import Draw
from loco_train.outer.mixing import Mix, Ranges
from loco_train.outer.optimizer import OuterOptimizer
from loco_train.outer.rules import FromEnds
from loco_train.outer.state import OuterState
from loco_train.outer.weights import Weights
from loco_train.shards import FlatLayout


@dataclass(frozen=True)
class StreamingMethod:
    """See `OuterMethod`.

    fragments: the mixing of each, over its ranges of the flat buffer; together they are the whole model.
    kept: what an island keeps of its own parameters when a fragment lands (the paper's alpha).

    State: `base` the fragments as last synchronised, equal on all islands. `sent` this island's progress in the
    fragment that is under way: it was made before the inner steps that hide it, and cannot be made again on resume.
    """

    fragments: Sequence[Mix]
    optimizer: OuterOptimizer
    kept: float
    keeps_islands_equal = False
    keeps_bases_equal = True
    gives_mean = False
    sends_behind = True

    def new_state(self, numel: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> OuterState:
        return OuterState.zeros(numel, device=device, dtype=dtype, mixed=True, sent=True)

    def weights(self, islands: int, draw: Draw) -> tuple[Weights, Weights]:
        landing = self._landing(draw)
        behind = Weights.identity(islands) if landing is None else landing.weights(islands, draw)
        return behind, Weights.identity(islands)

    def begin_round(self, state: OuterState, draw: Draw, communicator: Communicator) -> Pending:
        landing, (sent, mixed) = self._landing(draw), _buffers(state)
        if landing is None:
            return Together()
        mixed.copy_(sent)
        return landing.start(mixed, draw, communicator)

    def contribution(self, state: OuterState, end: Tensor) -> bool:
        return FromEnds().contribution(state, end)

    def exchange(self, state: OuterState, contribution: Tensor, draw: Draw, communicator: Communicator) -> Pending:
        return Together()

    def pseudo_gradient(self, state: OuterState, contribution: Tensor, draw: Draw) -> Tensor:
        """Zero outside of the fragment that lands."""
        return _buffers(state)[1]

    def update(self, state: OuterState, gradient: Tensor, contribution: Tensor, draw: Draw) -> Tensor:
        landing, (sent, _) = self._landing(draw), _buffers(state)
        for first, end in landing.ranges or () if landing else ():
            part = slice(first, end)
            self.optimizer.step(OuterState(state.base[part], state.momentum[part]), gradient[part])
            mix([contribution[part], state.base[part]], [self.kept, 1 - self.kept], out=contribution[part])
        sent.zero_()
        for first, end in self._leaving(draw).ranges or ():
            pseudo_gradient(state.base[first:end], contribution[first:end], out=sent[first:end])
        return contribution

    def _landing(self, draw: Draw) -> Mix | None:
        return None if draw.round == 0 else self.fragments[(draw.round - 1) % len(self.fragments)]

    def _leaving(self, draw: Draw) -> Mix:
        return self.fragments[draw.round % len(self.fragments)]


def _buffers(state: OuterState) -> tuple[Tensor, Tensor]:
    """sent, mixed."""
    assert state.sent is not None, "made by new_state"
    assert state.mixed is not None, "made by new_state"
    return state.sent, state.mixed


def fragment_ranges(layout: FlatLayout, *, fragments: int) -> tuple[Ranges, ...]:
    """Strided, as the paper finds best: layer l in fragment l mod P, the embedding in the first, final norm and head
    in the last."""

    def ranges(fragment: int) -> Ranges:
        return layout.joined(lambda shard: _fragment_of(block_of(shard.name), fragments) == fragment)

    return tuple(map(ranges, range(fragments)))


def _fragment_of(block: str, fragments: int) -> int:
    if block.startswith("layers."):
        return int(block.split(".")[1]) % fragments
    return 0 if block == "embedding" else fragments - 1
