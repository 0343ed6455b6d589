"""Held-out sequences, and who evaluates them."""

from __future__ import annotations

from torch import Tensor

from loco_train.config.schema import RunConfig
from loco_train.data.loader import BatchLoader
from loco_train.islands import Engine
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.evaluation import Evaluator


def build_evaluator(
    config: RunConfig, heldout: BatchLoader, *, engine: Engine, events: EventLog, clock: PhaseClock
) -> Evaluator:
    """The held-out sequences of this data parallel rank, and who evaluates them."""
    batches = heldout_batches(config, heldout, engine=engine, sequences=config.evaluation.sequences)
    return Evaluator(config=config, engine=engine, batches=batches, events=events, clock=clock)


def heldout_batches(config: RunConfig, heldout: BatchLoader, *, engine: Engine, sequences: int) -> list[Tensor]:
    """This data parallel rank's share of the first held-out sequences."""
    layout = engine.layout
    return heldout.micro_batches(
        0,
        sequences=sequences,
        micro=config.batch.micro,
        data_index=layout.data_index,
        data_count=layout.data,
    )
