"""Settings of consensus health: how often it is measured, and what follows from it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loco_train.config.method import MethodConfig
from loco_train.config.settings import Settings, require


class WideningConfig(Settings):
    """mix2 of the whole model while the islands are further apart than usual; with a random pair if it has nobody.

    The usual JS distance is the median of those at which mix2 was left as it is set.
    """

    rise: Annotated[float, Field(gt=1)] = Field(1.3, description="Times the usual distance: above it mix2 is widened.")
    fall: PositiveFloat = Field(1.1, description="Times the usual distance: below it mix2 is as set again.")
    window: PositiveInt = Field(
        8, description="Measurements that the median is of, the last ones; none decides before."
    )

    @model_validator(mode="after")
    def _check(self) -> WideningConfig:
        require(self.fall < self.rise, f"fall ({self.fall:g}) must be below rise ({self.rise:g})")
        return self


class HealthConfig(Settings):
    """How far the islands are from their mean at the end of a round's inner steps (arXiv 2606.22768).

    L2 of the parameters, by block and in all, and the JS distance of what the models say. A measurement averages the
    model over all islands once, which they wait for, and takes two more forward passes over the sequences, and one for
    each block where js_by_block is on.
    """

    every_rounds: PositiveInt | None = Field(None, description="None: never.")
    js_by_block: bool = Field(
        False, description="The JS distance that each block's disagreement alone causes, too: a forward pass for each."
    )
    sequences: PositiveInt | None = Field(
        None,
        description="Held-out ones for the JS distance, always the same, for mix2.blocks measured too; None: 8, or the "
        "next multiple that fits.",
    )
    policy: WideningConfig | None = Field(None, description="What a measurement changes; None: nothing.")

    def check_fits(self, method: MethodConfig, *, share: int) -> None:
        """share: sequences of one forward pass over all data parallel ranks. Raises ValueError."""
        if self.policy is not None:
            self._check_policy(method)
        require(
            self.every_rounds is None or method.rule != "none",
            "health.every_rounds: rule none has one island, which agrees with itself",
        )
        require(
            self.sequences is None or self.sequences % share == 0,
            f"health.sequences ({self.sequences}) must be a multiple of batch.micro * parallel.data ({share})",
        )

    def _check_policy(self, method: MethodConfig) -> None:
        require(self.every_rounds is not None, "health.policy needs measurements: set health.every_rounds")
        require(
            method.rule == "progress",
            f"health.policy widens mix2 of rule progress only, got rule {method.rule}: for ends mix2 is the whole "
            "method, the others have none",
        )
        require(
            method.mix1.peers != "nobody",
            "health.policy needs a mix1: without it blocks that mix2 has left out never come together again, however "
            "wide it is later",
        )
        require(
            method.mix2.peers == "nobody" or method.mix2.blocks is not None,
            f"health.policy has nothing to widen: mix2 is of the whole model already, with peers {method.mix2.peers}; "
            "set method.mix2.blocks, or peers nobody",
        )
