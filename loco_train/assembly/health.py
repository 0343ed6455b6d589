"""Who measures consensus health, and what follows from it."""

from __future__ import annotations

from functools import partial

from loco_train.assembly.heldout import heldout_batches
from loco_train.blocks import block_names
from loco_train.config.schema import RunConfig
from loco_train.data.loader import open_heldout
from loco_train.islands import Engine
from loco_train.outer.methods import with_mix2
from loco_train.outer.policy import Widening
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.health import Health, HealthMeter, HealthParts
from loco_train.training.listener import Listener
from loco_train.training.mix2 import Mix2
from loco_train.training.mix2_blocks import BlockChooser
from loco_train.training.mix2_policy import FixedMix2, Mix2Policy, WideningMix2
from loco_train.training.outer_step import ExchangingOuterStep, OuterStep


def build_health(
    config: RunConfig, *, engine: Engine, outer_step: OuterStep, events: EventLog, clock: PhaseClock
) -> Health:
    """Who measures consensus health, with held-out sequences of its own; nobody where the settings ask for none."""
    measured, every = config.method.mix2.is_measured, config.health.every_rounds
    if not isinstance(outer_step, ExchangingOuterStep) or not (measured or every):
        return HealthParts([])
    sequences = config.health_sequences
    batches = heldout_batches(config, open_heldout(config, sequences), engine=engine, sequences=sequences)
    listener = Listener(engine, batches)
    blocks = block_names(layers=config.model.layers, tied=config.model.tied_embeddings)
    mix2 = build_mix2(config, outer_step=outer_step)
    parts: list[Health] = []
    if measured:
        chosen = config.method.mix2
        parts.append(
            BlockChooser(
                blocks=blocks,
                budget=float(chosen.budget or 0),
                every_rounds=chosen.measure_every_rounds,
                listener=listener,
                outer_step=outer_step,
                mix2=mix2,
                events=events,
                clock=clock,
            )
        )
    if every is not None:
        policy = build_mix2_policy(config, mix2=mix2, events=events)
        heard = blocks if config.health.js_by_block else ()
        parts.append(HealthMeter(every, blocks, heard, listener, outer_step, events, clock, policy))
    return HealthParts(parts)


def build_mix2(config: RunConfig, *, outer_step: ExchangingOuterStep) -> Mix2:
    """The outer step's mix2, for those who change it."""
    build = partial(
        with_mix2,
        outer_step.method,
        layout=outer_step.views.owned,
        layers=config.model.layers,
        tied=config.model.tied_embeddings,
    )
    narrow = config.method.mix2
    if narrow.peers == "nobody":  # widened, pairs meet over the links that mix1's may
        narrow = narrow.model_copy(update={"links": config.method.mix1.links})
    return Mix2(narrow, build, outer_step)


def build_mix2_policy(config: RunConfig, *, mix2: Mix2, events: EventLog) -> Mix2Policy:
    """What follows from a measurement of health."""
    policy = config.health.policy
    if policy is None:
        return FixedMix2()
    return WideningMix2(mix2, Widening(policy.rise, policy.fall, policy.window), events)
