"""The only module that turns settings into objects: each function builds one part, and can be replaced by itself."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

from loco_train.blocks import block_names
from loco_train.checkpoint import clean_stale, island_checkpoints
from loco_train.config.schema import RunConfig
from loco_train.data.ledger import Ledger
from loco_train.data.loader import BatchLoader, open_heldout, open_loader
from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.islands import Engine, Layout, ParameterViews, build_engine, join_island
from loco_train.islands.matrices import IslandMatrices
from loco_train.launch.environment import RankEnvironment
from loco_train.outer import outer_method
from loco_train.outer.methods import with_mix2
from loco_train.outer.policy import Widening
from loco_train.telemetry.events import RunStarted
from loco_train.telemetry.log import EventLog, Sink
from loco_train.telemetry.meters import PhaseClock
from loco_train.telemetry.report import events_path
from loco_train.telemetry.sinks import ConsoleSink, JsonlSink, TensorBoardSink
from loco_train.training.evaluation import Evaluator
from loco_train.training.health import Health, HealthMeter, HealthParts
from loco_train.training.keeper import CheckpointKeeper
from loco_train.training.listener import Listener
from loco_train.training.loop import Trainer
from loco_train.training.meeting import Meeting, compare_islands, compare_weights
from loco_train.training.mix2 import Mix2
from loco_train.training.mix2_blocks import BlockChooser
from loco_train.training.mix2_policy import FixedMix2, Mix2Policy, WideningMix2
from loco_train.training.outer_step import ExchangingOuterStep, NoOuterStep, OuterStep
from loco_train.training.progress import Progress, round_plan
from loco_train.training.resume import agree_on_point, restore
from loco_train.training.sample_log import SampleLog
from loco_train.transport.ballot import Ballot
from loco_train.transport.counterparts import Counterparts, Position
from loco_train.transport.island import on_leader
from loco_train.transport.store import connect_rendezvous

T = TypeVar("T")


def choose_device(config: RunConfig, *, local_rank: int) -> torch.device:
    """The device of this rank.

    Raises:
        EnvironmentProblem: `device: cuda`, or a GPU for each local rank, is not to be had.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "cpu" or (config.device == "auto" and available == 0):
        return torch.device("cpu")
    if local_rank >= available:
        raise EnvironmentProblem(
            f"there is no GPU for local rank {local_rank}",
            got=f"{available} GPUs",
            allowed="one for each rank of the island on this machine",
            fix="start fewer ranks here, check CUDA_VISIBLE_DEVICES, or set device=cpu",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def join_default_group(environment: RankEnvironment, *, config: RunConfig, device: torch.device) -> None:
    """The island's own world: its default process group, which is all that Megatron and DeepSpeed ever see."""
    # Ranks wait for rank 0 while it waits for other islands: their patience must outlast its.
    network = config.network
    timeout = timedelta(seconds=2 * max(network.rendezvous_timeout, network.exchange_timeout) + 600)
    alone = dist.HashStore() if environment.address is None else None
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        store=alone,
        rank=environment.rank,
        world_size=environment.ranks,
        timeout=timeout,
    )


def connect_store(config: RunConfig) -> Store | None:
    """The store where islands meet; None for one island."""
    islands = config.islands
    if islands.count == 1:
        return None
    if islands.rendezvous is None:
        raise ConfigError(
            f"islands.rendezvous is not set, but there are {islands.count} islands",
            allowed="host:port of a store that all islands reach",
            fix="start one with `loco rendezvous`, or start all islands with `loco launch local`",
        )
    return connect_rendezvous(islands.rendezvous, timeout_seconds=config.network.rendezvous_timeout)


def build_events(config: RunConfig, *, rank: int) -> EventLog:
    """Rank 0 tells the island's events; the others are silent."""
    if rank != 0:
        return EventLog([])
    path = events_path(Path(config.run_dir), config.islands.index)
    path.parent.mkdir(parents=True, exist_ok=True)
    sinks: list[Sink] = [JsonlSink(path)]
    if config.telemetry.console:
        sinks.append(ConsoleSink(total_steps=config.rounds * config.inner_steps))
    if config.telemetry.tensorboard:
        sinks.append(TensorBoardSink(path.parent / "tensorboard"))
    return EventLog(sinks)


def build_outer_step(
    meeting: Meeting, *, layout: Layout, views: ParameterViews, device: torch.device, clock: PhaseClock
) -> OuterStep:
    """The outer step of the run's method; connects this rank to its counterparts."""
    config = meeting.config
    if config.method.rule == "none":
        return NoOuterStep()
    method = outer_method(
        config.method,
        islands=config.islands.count,
        layout=views.owned,
        matrices=IslandMatrices(config.model, views, embeddings=config.method.aggregator.embeddings),
        layers=config.model.layers,
        tied=config.model.tied_embeddings,
    )
    place = device if config.method.outer_state == "device" else torch.device("cpu")
    blocking = behind = connect_counterparts(meeting, "blocking", layout=layout, device=device)
    if method.sends_behind:
        # Operations of one group are done in their order: what is under way in the background has a group of its own.
        behind = connect_counterparts(meeting, "behind", layout=layout, device=device)
    return ExchangingOuterStep(
        method=method,
        state=method.new_state(views.owned.numel, device=place),
        scratch=torch.zeros(views.owned.numel, device=place),
        views=views,
        blocking=blocking,
        behind=behind,
        ballot=Ballot(
            meeting.store,
            prefix=meeting.prefix,
            index=config.islands.index,
            count=config.islands.count,
            timeout_seconds=config.network.exchange_timeout,
            hopeless=blocking.lost,
        ),
        clock=clock,
        seed=config.seed,
    )


def connect_counterparts(meeting: Meeting, purpose: str, *, layout: Layout, device: torch.device) -> Counterparts:
    """A communicator between this rank and the ranks at its position in the other islands."""
    islands, network = meeting.config.islands, meeting.config.network
    return Counterparts(
        meeting.store,
        prefix=f"{meeting.prefix}/{purpose}",
        position=Position(layout.pipeline_index, layout.tensor_index, layout.data_index),
        index=islands.index,
        count=islands.count,
        device=device,
        backend=network.backend,
        timeout_seconds=network.exchange_timeout,
        bucket_bytes=int(network.bucket_bytes),
        interface=network.interface,
    )


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
    events.emit(
        RunStarted(
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
    )
    return Trainer(
        config=config,
        engine=engine,
        loader=loader,
        outer_step=outer_step,
        evaluator=build_evaluator(config, heldout, engine=engine, events=events, clock=clock),
        health=health,
        keeper=CheckpointKeeper(
            config=config,
            run_id=run_id,
            folder=island_checkpoints(Path(config.run_dir), config.islands.index),
            engine=engine,
            outer_step=outer_step,
            health=health,
            attachments=attachments(config),
            events=events,
            clock=clock,
            announce_saved=meeting.announce_saved,
        ),
        samples=SampleLog(ledger, config.islands.index, config.batch.island, progress.step),
        events=events,
        clock=clock,
        progress=progress,
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


def build_evaluator(
    config: RunConfig, heldout: BatchLoader, *, engine: Engine, events: EventLog, clock: PhaseClock
) -> Evaluator:
    """The held-out sequences of this data parallel rank, and who evaluates them."""
    batches = heldout_batches(config, heldout, engine=engine, sequences=config.evaluation.sequences)
    return Evaluator(config=config, engine=engine, batches=batches, events=events, clock=clock)


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
        parts.append(HealthMeter(every, blocks, listener, outer_step, events, clock, policy))
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
    return Mix2(config.method.mix2, build, outer_step)


def build_mix2_policy(config: RunConfig, *, mix2: Mix2, events: EventLog) -> Mix2Policy:
    """What follows from a measurement of health."""
    policy = config.health.policy
    if policy is None:
        return FixedMix2()
    return WideningMix2(mix2, Widening(policy.rise, policy.fall, policy.window), events)


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


def build_ledger(config: RunConfig, progress: Progress, *, rank: int) -> Ledger | None:
    """Rank 0's ledger of consumed samples, cut back to what the state has consumed."""
    if rank != 0:
        return None
    path = events_path(Path(config.run_dir), config.islands.index).with_name("ledger.jsonl")
    ledger = Ledger(path)
    first = round_plan(config, cursor=progress.cursor).first(config.islands.index)
    ledger.truncate_to(round=progress.round, stop=first + progress.steps_into_round * config.batch.island)
    return ledger


def build_offline_engine(config: RunConfig, *, device: torch.device) -> Engine:
    """The run's model in one process, in fp32, for evaluating checkpoints of any layout. Makes a default group."""
    alone = config.model_dump(mode="json")
    alone["islands"] = {}
    alone["parallel"] = {}
    alone["health"] = {}
    alone["precision"] = {"parameters": "fp32"}
    alone["batch"]["island"] = alone["batch"]["micro"]
    single = RunConfig.model_validate(alone)
    join_default_group(RankEnvironment(0, 1, 0, None), config=single, device=device)
    return build_engine(single, join_island(single, device=device), device=device)


def attachments(config: RunConfig) -> dict[str, bytes]:
    """Files that travel with every checkpoint: the tokenizer, and the settings as a person reads them."""
    import yaml

    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return {"tokenizer.model": Path(config.data.tokenizer).read_bytes(), "config.yaml": text.encode()}
