"""Settings of consensus health: how often it is measured, and what follows from it."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from loco_train.config.method import MethodConfig
from loco_train.config.settings import Settings, require


class HealthConfig(Settings):
    """How far the islands are from their mean at the end of a round's inner steps (arXiv 2606.22768).

    L2 of the parameters, by block and in all, and the JS distance of what the models say. A measurement averages the
    model over all islands once, which they wait for, and takes two more forward passes over the sequences.
    """

    every_rounds: PositiveInt | None = Field(None, description="None: never.")
    sequences: PositiveInt = Field(8, description="Held-out sequences for the JS distance, the same ones every time.")

    def check_fits(self, method: MethodConfig, *, share: int) -> None:
        """share: sequences of one forward pass over all data parallel ranks. Raises ValueError."""
        if self.every_rounds is None:
            return
        require(method.rule != "none", "health.every_rounds: rule none has one island, which agrees with itself")
        require(
            self.sequences % share == 0,
            f"health.sequences ({self.sequences}) must be a multiple of batch.micro * parallel.data ({share})",
        )
