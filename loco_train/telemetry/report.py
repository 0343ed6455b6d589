"""A run's events read back, and what they add up to over its islands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from loco_train.errors import DataError
from loco_train.telemetry.events import EVENTS, EvaluationDone, Event, RoundDone, RunStarted, StepDone


def events_path(run_dir: Path, island: int) -> Path:
    """Where an island writes its events."""
    return run_dir / "islands" / str(island) / "events.jsonl"


@dataclass(frozen=True)
class Recorded:
    """An event and when it was written, in seconds since 1970."""

    time: float
    event: Event


def read_records(path: Path) -> list[Recorded]:
    """All events of a file, in order. A line cut off by a kill is left out."""
    found = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            record = parse_record(line)
            if record is not None:
                found.append(record)
    return found


def parse_record(line: str) -> Recorded | None:
    """The event of one line; None for what is no event (a cut line, an event of a later version)."""
    try:
        data = json.loads(line)
        kind = EVENTS[data["type"]]
        names = {field.name for field in fields(kind)}
        return Recorded(data["time"], kind(**{name: value for name, value in data.items() if name in names}))
    except (ValueError, KeyError, TypeError):
        return None


def read_events(path: Path) -> list[Event]:
    """The events of `read_records`."""
    return [record.event for record in read_records(path)]


@dataclass(frozen=True)
class IslandReport:
    """One island's run so far. Losses in nats; None where not measured.

    steps, rounds, tokens, bytes: a step or round that was done again after a resume counts once.
    wall_seconds: from the first inner step of each start to its last event, all starts together.
    compute_seconds: of these, in inner steps. tokens_per_second: over the wall time, exchanges included.
    """

    island: int
    steps: int
    rounds: int
    tokens: int
    tokens_per_second: float
    wall_seconds: float
    compute_seconds: float
    compute_utilization: float | None
    bytes_sent: int
    socket_bytes_sent: int | None
    loss: float | None
    consensus_loss_before: float | None
    consensus_loss_after: float | None
    island_loss_after: float | None


@dataclass(frozen=True)
class RunReport:
    """All islands of a run. Sums over the islands, but compute_utilization and the consensus's losses, which all
    islands measure alike: these are means."""

    islands: tuple[IslandReport, ...]
    tokens: int
    tokens_per_second: float
    compute_utilization: float | None
    bytes_sent: int
    socket_bytes_sent: int | None
    consensus_loss_before: float | None
    consensus_loss_after: float | None


def run_report(run_dir: Path) -> RunReport:
    """What the events of a run add up to.

    Raises:
        DataError: there are none.
    """
    indices = sorted(
        int(path.parent.name) for path in run_dir.glob("islands/*/events.jsonl") if path.parent.name.isdecimal()
    )
    if not indices:
        raise DataError(f"there are no events in {run_dir}", allowed="a run folder: islands/0/events.jsonl inside")
    islands = tuple(island_report(run_dir, index) for index in indices)
    return RunReport(
        islands=islands,
        tokens=sum(island.tokens for island in islands),
        tokens_per_second=sum(island.tokens_per_second for island in islands),
        compute_utilization=_mean(island.compute_utilization for island in islands),
        bytes_sent=sum(island.bytes_sent for island in islands),
        socket_bytes_sent=_sum_of_known(island.socket_bytes_sent for island in islands),
        consensus_loss_before=_mean(island.consensus_loss_before for island in islands),
        consensus_loss_after=_mean(island.consensus_loss_after for island in islands),
    )


def island_report(run_dir: Path, island: int) -> IslandReport:
    """What the events of one island add up to."""
    records = read_records(events_path(run_dir, island))
    events = [record.event for record in records]
    # By step and round: after a resume from an earlier checkpoint the later run of the same step counts.
    steps = {event.step: event for event in events if isinstance(event, StepDone)}
    rounds = {event.round: event for event in events if isinstance(event, RoundDone)}
    consensus, own = _losses(events, "consensus"), _losses(events, "island")
    sessions = [_session_seconds(session) for session in _sessions(records)]
    wall, compute = sum(s.wall for s in sessions), sum(s.compute for s in sessions)
    done = sum(s.tokens for s in sessions)
    return IslandReport(
        island=island,
        steps=len(steps),
        rounds=len(rounds),
        tokens=round(sum(_tokens(event) for event in steps.values())),
        tokens_per_second=done / wall if wall else 0.0,
        wall_seconds=wall,
        compute_seconds=compute,
        compute_utilization=compute / wall if wall else None,
        bytes_sent=sum(event.bytes_sent for event in rounds.values()),
        socket_bytes_sent=_sum_of_known(event.socket_bytes_sent for event in rounds.values()),
        loss=steps[max(steps)].loss if steps else None,
        consensus_loss_before=consensus[0] if consensus else None,
        consensus_loss_after=consensus[-1] if consensus else None,
        island_loss_after=own[-1] if own else None,
    )


@dataclass(frozen=True)
class _Session:
    """One start of the program. tokens: that this island consumed in it, steps that were lost again included."""

    wall: float
    compute: float
    tokens: float


def _sessions(records: list[Recorded]) -> list[list[Recorded]]:
    sessions: list[list[Recorded]] = [[]]
    for record in records:
        if isinstance(record.event, RunStarted):
            sessions.append([])
        sessions[-1].append(record)
    return sessions


def _session_seconds(records: list[Recorded]) -> _Session:
    steps = [(record.time, record.event) for record in records if isinstance(record.event, StepDone)]
    if not steps:
        return _Session(0.0, 0.0, 0.0)
    first_time, first = steps[0]
    compute = sum(event.step_seconds for _, event in steps)
    # Of a clock that was set back nothing shorter than the steps themselves can be believed.
    wall = max(compute, records[-1].time - (first_time - first.step_seconds))
    return _Session(wall, compute, sum(_tokens(event) for _, event in steps))


def _tokens(event: StepDone) -> float:
    return event.tokens_per_second * event.step_seconds


def _losses(events: list[Event], scope: str) -> list[float]:
    return [event.loss for event in events if isinstance(event, EvaluationDone) and event.scope == scope]


def _sum_of_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
