"""One rank's trainer, ready to run."""

from __future__ import annotations

from pathlib import Path

import torch

from loco_train.assembly.exchange import build_outer_step
from loco_train.assembly.health import build_health
from loco_train.assembly.heldout import build_evaluator
from loco_train.assembly.start import connect_store
from loco_train.checkpoint import clean_stale, island_checkpoints
from loco_train.config.schema import RunConfig
from loco_train.data.ledger import Ledger
from loco_train.data.loader import open_heldout, open_loader
from loco_train.islands import Engine, build_engine, join_island
from loco_train.launch.environment import RankEnvironment
from loco_train.telemetry.events import RunStarted
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.meters import PhaseClock
from loco_train.telemetry.report import events_path
from loco_train.training.health import Health
from loco_train.training.keeper import CheckpointKeeper
from loco_train.training.loop import Trainer
from loco_train.training.meeting import Meeting, compare_islands, compare_weights
from loco_train.training.outer_step import OuterStep
from loco_train.training.progress import Progress, round_plan
from loco_train.training.resume import agree_on_point, restore
from loco_train.training.sample_log import SampleLog
from loco_train.transport.island import on_leader


def build_trainer(
    config: RunConfig, environment: RankEnvironment, *, run_id: str, device: torch.device, events: EventLog
) -> Trainer:
    """One rank's trainer, ready to run: parts built, islands compared, state fresh or resumed. The default group must
    exist. Collective over the island, and over the islands.

    Raises:
        LocoError: whatever of settings, data, islands or checkpoints does not fit.
    """
    loader, heldout = open_loader(config), open_heldout(config, config.evaluation.sequences)
    meeting = Meeting.arrange(config, connect_store(config), run_id)
    layout = join_island(config, device=device)
    engine = build_engine(config, layout, device=device)
    clock = PhaseClock()
    compare_islands(meeting, loader=loader, views=engine.views)
    outer_step = build_outer_step(meeting, layout=layout, views=engine.views, device=device, clock=clock)
    health = build_health(config, engine=engine, outer_step=outer_step, events=events, clock=clock)
    progress, resumed_from = start_or_resume(meeting, engine=engine, outer_step=outer_step, health=health)
    ledger = build_ledger(config, progress, rank=environment.rank)
    events.emit(started(config, environment, run_id=run_id, progress=progress, resumed_from=resumed_from))
    return Trainer(
        config=config,
        engine=engine,
        loader=loader,
        outer_step=outer_step,
        evaluator=build_evaluator(config, heldout, engine=engine, events=events, clock=clock),
        health=health,
        keeper=build_keeper(meeting, engine=engine, outer_step=outer_step, health=health, events=events, clock=clock),
        samples=SampleLog(ledger, config.islands.index, config.batch.island, progress.step),
        events=events,
        clock=clock,
        progress=progress,
    )


def started(
    config: RunConfig, environment: RankEnvironment, *, run_id: str, progress: Progress, resumed_from: str | None
) -> RunStarted:
    """The event of it."""
    return RunStarted(
        step=progress.step,
        round=progress.round,
        run_name=config.name,
        run_id=run_id,
        island=config.islands.index,
        islands=config.islands.count,
        ranks=environment.ranks,
        parameters=config.model.parameters,
        resumed_from=resumed_from,
    )


def build_keeper(
    meeting: Meeting, *, engine: Engine, outer_step: OuterStep, health: Health, events: EventLog, clock: PhaseClock
) -> CheckpointKeeper:
    """Who saves whole checkpoints of this island."""
    config = meeting.config
    return CheckpointKeeper(
        config=config,
        run_id=meeting.run_id,
        folder=island_checkpoints(Path(config.run_dir), config.islands.index),
        engine=engine,
        outer_step=outer_step,
        health=health,
        attachments=attachments(config),
        events=events,
        clock=clock,
        announce_saved=meeting.announce_saved,
    )


def start_or_resume(
    meeting: Meeting, *, engine: Engine, outer_step: OuterStep, health: Health
) -> tuple[Progress, str | None]:
    """Where the run stands, and the checkpoint it came from: None on a fresh start, whose weights are compared."""
    config = meeting.config
    folder = island_checkpoints(Path(config.run_dir), config.islands.index)
    on_leader(lambda: clean_stale(folder))
    agreed, point = agree_on_point(folder, meeting=meeting)
    on_leader(lambda: meeting.announce_saved(-1 if point is None else point.round))
    if agreed is None:
        compare_weights(meeting, views=engine.views)

    def begin() -> Progress:
        if point is not None:
            return restore(
                point,
                folder=folder,
                config=config,
                run_id=meeting.run_id,
                engine=engine,
                outer_step=outer_step,
                health=health,
            )
        outer_step.begin()
        return Progress()

    progress = meeting.all_succeed("restoring", begin)
    return progress, None if point is None else str(folder)


def build_ledger(config: RunConfig, progress: Progress, *, rank: int) -> Ledger | None:
    """Rank 0's ledger of consumed samples, cut back to what the state has consumed."""
    if rank != 0:
        return None
    path = events_path(Path(config.run_dir), config.islands.index).with_name("ledger.jsonl")
    ledger = Ledger(path)
    first = round_plan(config, cursor=progress.cursor).first(config.islands.index)
    ledger.truncate_to(round=progress.round, stop=first + progress.steps_into_round * config.batch.island)
    return ledger


def attachments(config: RunConfig) -> dict[str, bytes]:
    """Files that travel with every checkpoint: the tokenizer, and the settings as a person reads them."""
    import yaml

    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return {"tokenizer.model": Path(config.data.tokenizer).read_bytes(), "config.yaml": text.encode()}
