"""Whole tiny runs for tests: data on disk, a trainer on every rank, and digests of all that training changes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loco_train.testing.ranks import World
from loco_train.testing.tiny import tiny_run

if TYPE_CHECKING:
    from loco_train.training.loop import Trainer
    from loco_train.training.outer_step import OuterReport
    from loco_train.training.progress import Progress

_WORDS = ("island", "gossip", "round", "mean", "of", "the", "a", "shard", "base", "step", "momentum", "wait")


def write_tiny_data(folder: Path, *, seed: int = 0) -> dict[str, Any]:
    """A tokenizer of 300 ids and a dataset of random sentences; gives the settings that point to them."""
    from loco_train.data.build import build_dataset
    from loco_train.data.tokenizer import train_tokenizer

    generator = random.Random(seed)
    documents = [" ".join(generator.choices(_WORDS, k=60)) for _ in range(200)]
    tokenizer = train_tokenizer(documents, folder / "tokenizer.model", vocab_size=300)
    build_dataset(documents, folder / "corpus", tokenizer)
    return {
        "data.tokenizer": str(folder / "tokenizer.model"),
        "data.train": [{"path": str(folder / "corpus")}],
        "data.heldout_fraction": 0.2,
        "model.vocab_size": 300,
        "telemetry.console": False,
        "telemetry.tensorboard": False,
    }


def tiny_trainer(world: World, settings: Mapping[str, Any], *, device: str = "cpu", run_id: str = "tiny") -> Trainer:
    """This rank's trainer of a tiny run, over the world's islands. Collective over all of them."""
    from loco_train.assembly import build_events, build_trainer
    from loco_train.launch.environment import RankEnvironment

    config = tiny_run(
        {
            **settings,
            "islands.count": world.islands,
            "islands.index": world.island,
            "islands.rendezvous": world.rendezvous,
        }
    )
    environment = RankEnvironment(world.rank, world.ranks, world.rank, None)
    events = build_events(config, rank=world.rank)
    return build_trainer(config, environment, run_id=run_id, device=torch.device(device), events=events)


def state_digests(trainer: Trainer) -> dict[str, str]:
    """sha256 of every tensor of this rank that training changes, by checkpoint key."""
    from loco_train.transport.handshake import tensor_digests

    return tensor_digests({**trainer.engine.views.state(), **trainer.outer_step.tensors()}.items())


class Stopped(Exception):
    """The test's way to end a process."""


def train_until(world: World, settings: Mapping[str, Any], stop: tuple[int, str] | None = None) -> dict[str, str]:
    """Train to the end: `state_digests`. Or to a stop in a round, `inside` its inner steps or before its `exchange`,
    which fails: nothing; the next call resumes there. Collective over the islands."""
    from loco_train.errors import TransportError

    trainer = tiny_trainer(world, settings)
    save, exchange = trainer.keeper.save, trainer.outer_step.run

    def save_and_stop(progress: Progress) -> None:
        save(progress)
        if stop == (progress.round, "inside") and progress.steps_into_round:
            raise Stopped

    def fail_to_exchange(progress: Progress, *, learned: bool = True) -> OuterReport:
        if stop == (progress.round, "exchange"):
            raise TransportError("the test pulled the plug")
        return exchange(progress, learned=learned)

    trainer.keeper.save, trainer.outer_step.run = save_and_stop, fail_to_exchange  # type: ignore[method-assign]
    try:
        trainer.run()
    except (Stopped, TransportError):
        return {}
    return state_digests(trainer)
