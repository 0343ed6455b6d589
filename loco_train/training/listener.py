"""What the model in the engine says on held-out sequences, and how far that is from what another has said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.islands import Engine
from loco_train.outer.health import Speech, js_distances
from loco_train.training.outer_step import over_island


@dataclass(frozen=True)
class Listener:
    """batches: this data parallel rank's share of the held-out sequences, [micro, sequence + 1] token ids each."""

    engine: Engine
    batches: Sequence[Tensor]

    def hear(self) -> list[Speech]:
        """Of each batch; none where this rank has no logits, as on a pipeline's earlier stages."""
        return [Speech.of(logits) for logits in self.engine.logits(self.batches)]

    def distance(self, consensus: Sequence[Speech]) -> float:
        """The JS distance in [0, 1] of the engine's model from what `hear` gave for another, the mean over positions.

        The same on every rank of the island. Collective over it.
        """
        told = zip(self.engine.logits(self.batches), consensus, strict=True)
        found = [js_distances(logits, said) for logits, said in told]
        # Every tensor parallel rank has the same.
        mine = torch.cat(found) if found and self.engine.layout.tensor_index == 0 else torch.zeros(0)
        total, count = over_island([float(mine.sum()), mine.numel()], self.engine.views)
        return total / count
