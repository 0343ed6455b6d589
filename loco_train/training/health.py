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

from loco_train.blocks import block_of
from loco_train.shards import FlatLayout
from loco_train.telemetry.events import HealthMeasured
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.block_disagreement import js_of_blocks
from loco_train.training.listener import Listener
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


@dataclass
class HealthParts:
    """Each in turn; none: nothing is measured."""

    parts: Sequence[Health]

    def before_outer_step(self, progress: Progress) -> None:
        for part in self.parts:
            part.before_outer_step(progress)

    def scalars(self) -> dict[str, float]:
        return {name: value for part in self.parts for name, value in part.scalars().items()}

    def restore(self, scalars: Mapping[str, float]) -> None:
        for part in self.parts:
            part.restore(scalars)


@dataclass
class HealthMeter:
    """Measures every `every_rounds` rounds. blocks: of the model. heard_blocks: those whose own JS distance is measured
    too. policy: what follows from a measurement."""

    every_rounds: int
    blocks: Sequence[str]
    heard_blocks: Sequence[str]
    listener: Listener
    outer_step: ExchangingOuterStep
    events: EventLog
    clock: PhaseClock
    policy: Mix2Policy

    def before_outer_step(self, progress: Progress) -> None:
        """See `Health`. Collective over the islands, where it is due."""
        if (progress.round + 1) % self.every_rounds != 0:
            return
        begin = time.perf_counter()
        with self.clock.phase("evaluate"):
            found = self._measure(progress)
        self.events.emit(found.event(progress, seconds=time.perf_counter() - begin))
        if all(map(math.isfinite, found.mean)):  # otherwise the outer step refuses the round
            self.policy.heed(progress, found.mean[0])

    def scalars(self) -> dict[str, float]:
        return self.policy.scalars()

    def restore(self, scalars: Mapping[str, float]) -> None:
        self.policy.restore(scalars)

    def _measure(self, progress: Progress) -> Distances:
        step = self.outer_step
        with step.counted.apart(step.blocking) as sent:
            ends = step.own_and_mean(progress, "health")
            js, *js_by_block = self._js(ends)
            here = [js, *self._l2(ends), *js_by_block]
            every = step.of_every_island(progress, "health-told", here)
        (total_sent,) = over_island([sent.counted], step.views)
        return Distances(self.blocks, self.heard_blocks, here, every.mean(0).tolist(), int(total_sent))

    def _js(self, ends: OwnAndMean) -> list[float]:
        """Of the whole model, then of each heard block by itself."""
        views = self.outer_step.views
        with ends.mean_inside(views):
            consensus = self.listener.hear()
            by_block = js_of_blocks(self.heard_blocks, ends, consensus, listener=self.listener, views=views)
        return [self.listener.distance(consensus), *by_block]

    def _l2(self, ends: OwnAndMean) -> list[float]:
        """In all, then of each block; over the whole island."""
        views = self.outer_step.views
        squares = over_island(_squares(ends, views.owned, self.blocks), views)
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
    """here, mean: of this island, and over the islands: JS, L2 in all, L2 of each block, and JS of each heard one."""

    blocks: Sequence[str]
    heard_blocks: Sequence[str]
    here: Sequence[float]
    mean: Sequence[float]
    bytes_sent: int

    def event(self, progress: Progress, *, seconds: float) -> HealthMeasured:
        js, l2, *by_block = self.mean
        l2_by_block, js_by_block = by_block[: len(self.blocks)], by_block[len(self.blocks) :]
        return HealthMeasured(
            step=progress.step,
            round=progress.round,
            js=js,
            l2=l2,
            l2_by_block=dict(zip(self.blocks, l2_by_block, strict=True)),
            js_by_block=dict(zip(self.heard_blocks, js_by_block, strict=True)),
            js_here=self.here[0],
            l2_here=self.here[1],
            seconds=seconds,
            bytes_sent=self.bytes_sent,
        )
