"""The outer step's mix2, where measurements change it: the outer step gets a method with another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loco_train.config.method import MixConfig
from loco_train.outer import OuterMethod
from loco_train.training.outer_step import ExchangingOuterStep


@dataclass
class Mix2:
    """Of the whole model while it is widened, and otherwise as it is set or chosen.

    narrow: as it is set, with the blocks that were chosen. build: the run's method with another mix2.
    """

    narrow: MixConfig
    build: Callable[[MixConfig], OuterMethod]
    outer_step: ExchangingOuterStep
    wide: bool = False

    @property
    def in_force(self) -> MixConfig:
        return widened(self.narrow) if self.wide else self.narrow

    def choose(self, blocks: tuple[str, ...]) -> None:
        """Mix these blocks, from the next exchange on."""
        self.narrow = self.narrow.model_copy(update={"blocks": blocks})
        self._put_in_force()

    def widen(self, wide: bool) -> None:
        """Mix the whole model, or what is set or chosen, from the next exchange on."""
        self.wide = wide
        self._put_in_force()

    def _put_in_force(self) -> None:
        self.outer_step.method = self.build(self.in_force)


def widened(mix: MixConfig) -> MixConfig:
    """Of the whole model, with the peers that it has; with a random pair where it has nobody."""
    return mix.model_copy(update={"peers": "random-pair" if mix.peers == "nobody" else mix.peers, "blocks": None})
