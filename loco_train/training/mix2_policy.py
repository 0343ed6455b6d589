"""Mix2 that follows from consensus health.

What decides is equal to the last bit on every rank of every island, and is in the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from loco_train.outer.policy import Judged, Judgements, Widening, is_wide
from loco_train.telemetry.events import Mix2Changed
from loco_train.telemetry.log import EventLog
from loco_train.training.mix2 import Mix2
from loco_train.training.progress import Progress

_JS, _WIDE = "mix2_policy/js/", "mix2_policy/wide/"


class Mix2Policy(Protocol):
    """What follows from a measurement."""

    def heed(self, progress: Progress, js: float) -> None:
        """The islands' mean distance at the end of the round's inner steps, before its outer step."""

    def scalars(self) -> dict[str, float]:
        """What a checkpoint holds of it, by name."""

    def restore(self, scalars: Mapping[str, float]) -> None:
        """Set it from a checkpoint's scalars, others among them."""


class FixedMix2:
    """Mix2 stays as it is set."""

    def heed(self, progress: Progress, js: float) -> None:
        pass

    def scalars(self) -> dict[str, float]:
        return {}

    def restore(self, scalars: Mapping[str, float]) -> None:
        pass


@dataclass
class WideningMix2:
    """Mix2 of the whole model while the islands are further apart than usual."""

    mix2: Mix2
    widening: Widening
    events: EventLog
    judgements: Judgements = ()

    def heed(self, progress: Progress, js: float) -> None:
        """See `Mix2Policy`."""
        before = tuple(each for each in self.judgements if each.round < progress.round)
        self.judgements = self.widening.judge(before, round=progress.round, js=js)
        self.mix2.widen(is_wide(self.judgements))
        if is_wide(before) != is_wide(self.judgements):
            self._tell(progress, js, usual=self.widening.usual(before))

    def scalars(self) -> dict[str, float]:
        each = [(_JS, judged.round, judged.js) for judged in self.judgements]
        each += [(_WIDE, judged.round, float(judged.wide)) for judged in self.judgements]
        return {f"{kind}{round}": value for kind, round, value in each}

    def restore(self, scalars: Mapping[str, float]) -> None:
        rounds = sorted(int(name.removeprefix(_JS)) for name in scalars if name.startswith(_JS))
        self.judgements = tuple(Judged(r, scalars[f"{_JS}{r}"], bool(scalars[f"{_WIDE}{r}"])) for r in rounds)
        self.mix2.widen(is_wide(self.judgements))

    def _tell(self, progress: Progress, js: float, *, usual: float | None) -> None:
        now = self.mix2.in_force
        self.events.emit(
            Mix2Changed(
                step=progress.step,
                round=progress.round,
                wide=is_wide(self.judgements),
                peers=now.peers,
                blocks=None if now.blocks is None else list(now.blocks),
                js=js,
                usual_js=usual,
            )
        )
