"""Mix2 of the blocks whose disagreement is heard most (the subset of Factored Gossip, arXiv 2606.22768)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loco_kernels.block_select import choose_blocks

from loco_train.blocks import block_of
from loco_train.telemetry.events import BlocksMeasured
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.block_disagreement import js_of_blocks
from loco_train.training.listener import Listener
from loco_train.training.mix2 import Mix2
from loco_train.training.outer_step import ExchangingOuterStep, OwnAndMean, over_island
from loco_train.training.progress import Progress

_CHOSEN = "mix2_blocks/"
_BYTES_OF_PARAMETER = 4


@dataclass
class BlockChooser:
    """Measures in the first round, and again every `every_rounds`; None: only in the first.

    blocks: of the model, in its order. budget: of what mix2 sends of the model to one peer, in bytes.
    """

    blocks: Sequence[str]
    budget: float
    every_rounds: int | None
    listener: Listener
    outer_step: ExchangingOuterStep
    mix2: Mix2
    events: EventLog
    clock: PhaseClock
    chosen: tuple[str, ...] | None = None

    def before_outer_step(self, progress: Progress) -> None:
        """See `Health`. Collective over the islands, where it is due."""
        if not self._is_due(progress.round):
            return
        begin = time.perf_counter()
        step = self.outer_step
        with self.clock.phase("evaluate"), step.counted.apart(step.blocking) as sent:
            here = self._js_by_block(step.own_and_mean(progress, "blocks"))
            every = step.of_every_island(progress, "blocks-told", here)
        js = dict(zip(self.blocks, every.mean(0).tolist(), strict=True))
        sizes = self._sizes()
        if all(map(math.isfinite, js.values())):  # otherwise the outer step refuses the round
            self._choose(choose_blocks(js, sizes, budget=self.budget))
        (bytes_sent,) = over_island([sent.counted], step.views)
        self.events.emit(
            BlocksMeasured(
                step=progress.step,
                round=progress.round,
                js_by_block=js,
                bytes_by_block=sizes,
                chosen=list(self.chosen or ()),
                seconds=time.perf_counter() - begin,
                bytes_sent=int(bytes_sent),
            )
        )

    def scalars(self) -> dict[str, float]:
        return {f"{_CHOSEN}{block}": float(block in self.chosen) for block in self.blocks} if self.chosen else {}

    def restore(self, scalars: Mapping[str, float]) -> None:
        if any(name.startswith(_CHOSEN) for name in scalars):
            self._choose(tuple(block for block in self.blocks if scalars[f"{_CHOSEN}{block}"]))

    def _is_due(self, round: int) -> bool:
        return round == 0 or (self.every_rounds is not None and round % self.every_rounds == 0)

    def _choose(self, blocks: tuple[str, ...]) -> None:
        self.chosen = blocks
        self.mix2.choose(blocks)

    def _js_by_block(self, ends: OwnAndMean) -> list[float]:
        views = self.outer_step.views
        with ends.mean_inside(views):
            consensus = self.listener.hear()
            return js_of_blocks(self.blocks, ends, consensus, listener=self.listener, views=views)

    def _sizes(self) -> dict[str, int]:
        """What each block sends, in bytes, over the whole island."""
        mine = dict.fromkeys(self.blocks, 0.0)
        for shard, first, end in self.outer_step.views.owned.ranges():
            mine[block_of(shard.name)] += (end - first) * _BYTES_OF_PARAMETER
        return dict(zip(self.blocks, map(int, over_island(list(mine.values()), self.outer_step.views)), strict=True))
