"""How long the islands of a run take for an inner step and for an exchange, from their events."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from loco_train.errors import ConfigError
from loco_train.telemetry.events import RoundDone, RunStarted, StepDone
from loco_train.telemetry.report import events_path, read_events


@dataclass(frozen=True)
class MeasuredTimes:
    """By island, in seconds. exchange_seconds: with all peers of a round."""

    step_seconds: tuple[float, ...]
    exchange_seconds: tuple[float, ...]


def measured_times(run_dir: Path) -> MeasuredTimes:
    """The median inner step of each island, and its shortest wait at an outer step.

    In its shortest wait an island came last, and waited for nobody but the network. Of one that never comes last it
    is too long, by the time that it always waits for others.

    Raises:
        ConfigError: no run there, or an island that has not ended a round yet.
    """
    first = events_path(run_dir, 0)
    started = [e for e in read_events(first) if isinstance(e, RunStarted)] if first.is_file() else []
    if not started:
        raise ConfigError(f"{run_dir} holds no run", fix="give the run_dir of one that has trained")
    pairs = [_of_island(run_dir, island) for island in range(started[-1].islands)]
    return MeasuredTimes(*zip(*pairs, strict=True))


def _of_island(run_dir: Path, island: int) -> tuple[float, float]:
    path = events_path(run_dir, island)
    events = read_events(path) if path.is_file() else []
    steps = [event.step_seconds for event in events if isinstance(event, StepDone)]
    waits = [event.wait_seconds for event in events if isinstance(event, RoundDone)]
    if not waits or not steps:
        raise ConfigError(f"island {island} of {run_dir} has ended no round", fix="wait until every island has")
    return statistics.median(steps), min(waits)
