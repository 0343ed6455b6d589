"""Where a rank stands before anything is built: its device, its island's world, the islands' store, its events."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store

from loco_train.config.schema import RunConfig
from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.launch.environment import RankEnvironment
from loco_train.telemetry.log import EventLog, Sink
from loco_train.telemetry.report import events_path
from loco_train.telemetry.sinks import ConsoleSink, JsonlSink, TensorBoardSink
from loco_train.transport.store import connect_rendezvous


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
