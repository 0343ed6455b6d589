"""Consensus health: how far the islands are from their mean at the end of a round's inner steps, before they mix.

There islands differ with every method; the maxima in the tables of Factored Gossip (arXiv 2606.22768) are of such
points.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from loco_train.blocks import block_names, block_of
from loco_train.config.schema import RunConfig
from loco_train.islands import Engine
from loco_train.outer.health import Speech, js_distances
from loco_train.shards import FlatLayout
from loco_train.telemetry.events import HealthMeasured
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.mix2_policy import Mix2Policy
from loco_train.training.outer_step import ExchangingOuterStep, OwnAndMean, over_island
from loco_train.training.progress import Progress


class Health(Protocol):
    """What the loop does about health."""

    def before_outer_step(self, progress: Progress) -> None:
        """The inner steps of the round are done.

        Raises:
            TransportError: on every rank of this island; the parameters are as before.
        """

    def scalars(self) -> dict[str, float]:
        """What a checkpoint holds of what was decided, by name."""

    def restore(self, scalars: Mapping[str, float]) -> None:
        """Decide as the run of a checkpoint with these scalars, others among them."""


class NoHealth:
    """Nothing is measured."""

    def before_outer_step(self, progress: Progress) -> None:
        pass

    def scalars(self) -> dict[str, float]:
        return {}

    def restore(self, scalars: Mapping[str, float]) -> None:
        pass


@dataclass
class HealthMeter:
    """Measures every `health.every_rounds` rounds.

    batches: this data parallel rank's share of the held-out sequences. policy: what follows from a measurement.
    """

    config: RunConfig
    engine: Engine
    outer_step: ExchangingOuterStep
    batches: Sequence[Tensor]
    events: EventLog
    clock: PhaseClock
    policy: Mix2Policy

    def before_outer_step(self, progress: Progress) -> None:
        """See `Health`. Collective over the islands, where it is due."""
        every = self.config.health.every_rounds
        if every is not None and (progress.round + 1) % every == 0:
            begin = time.perf_counter()
            with self.clock.phase("evaluate"):
                found = self._measure(progress)
            self.events.emit(found.event(progress, seconds=time.perf_counter() - begin))
            self.policy.heed(progress, found.mean[0])

    def scalars(self) -> dict[str, float]:
        return self.policy.scalars()

    def restore(self, scalars: Mapping[str, float]) -> None:
        self.policy.restore(scalars)

    def _measure(self, progress: Progress) -> Distances:
        step = self.outer_step
        with step.counted.apart(step.blocking) as sent:
            ends = step.own_and_mean(progress, "health")
            blocks = block_names(layers=self.config.model.layers, tied=self.config.model.tied_embeddings)
            here = [self._js(ends), *self._l2(ends, blocks)]
            every = step.of_every_island(progress, "health-told", here)
        (total_sent,) = over_island([sent.counted], step.views)
        return Distances(blocks, here, every.mean(0).tolist(), int(total_sent))

    def _js(self, ends: OwnAndMean) -> float:
        with ends.mean_inside(self.engine.views):
            consensus = [Speech.of(logits) for logits in self.engine.logits(self.batches)]
        told = zip(self.engine.logits(self.batches), consensus, strict=True)
        return self._mean_over_positions([js_distances(logits, said) for logits, said in told])

    def _mean_over_positions(self, distances: Sequence[Tensor]) -> float:
        # Every tensor parallel rank has the same.
        mine = torch.cat(list(distances)) if distances and self.engine.layout.tensor_index == 0 else torch.zeros(0)
        total, count = over_island([float(mine.sum()), mine.numel()], self.engine.views)
        return total / count

    def _l2(self, ends: OwnAndMean, blocks: Sequence[str]) -> list[float]:
        """In all, then of each block; over the whole island."""
        squares = over_island(_squares(ends, self.engine.views.owned, blocks), self.engine.views)
        return [math.sqrt(sum(squares)), *map(math.sqrt, squares)]


def _squares(ends: OwnAndMean, layout: FlatLayout, blocks: Sequence[str]) -> list[float]:
    """By block, the squared distance of what this rank owns."""
    found = dict.fromkeys(blocks, 0.0)
    for shard, first, end in layout.ranges():
        apart = ends.own[first:end] - ends.mean[first:end]
        found[block_of(shard.name)] += float(apart.square().sum(dtype=torch.float64))
    return [found[block] for block in blocks]


@dataclass(frozen=True)
class Distances:
    """here, mean: of this island, and over the islands: JS, L2 in all, and L2 of each block."""

    blocks: Sequence[str]
    here: Sequence[float]
    mean: Sequence[float]
    bytes_sent: int

    def event(self, progress: Progress, *, seconds: float) -> HealthMeasured:
        js, l2, *by_block = self.mean
        return HealthMeasured(
            step=progress.step,
            round=progress.round,
            js=js,
            l2=l2,
            l2_by_block=dict(zip(self.blocks, by_block, strict=True)),
            js_here=self.here[0],
            l2_here=self.here[1],
            seconds=seconds,
            bytes_sent=self.bytes_sent,
        )
