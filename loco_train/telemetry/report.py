"""A run's events read back, and what they add up to over its islands."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from loco_train.telemetry.events import EVENTS, EvaluationDone, Event, RoundDone, RunEnded, RunStarted, StepDone


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
        types = {field.name: field.type for field in fields(kind)}
        values = {name: _value(types[name], value) for name, value in data.items() if name in types}
        return Recorded(data["time"], kind(**values))
    except (ValueError, KeyError, TypeError):
        return None


def _value(written_as: object, value: Any) -> Any:
    """NaN and infinity are null in a file; only a number that was measured can have been one."""
    return math.nan if value is None and written_as == "float" else value


def read_events(path: Path) -> list[Event]:
    """The events of `read_records`."""
    return [record.event for record in read_records(path)]


@dataclass(frozen=True)
class IslandReport:
    """One island's run so far. Losses in nats; None where not measured. A step or round done twice counts once.

    tokens_per_second, compute_utilization: of the last start that ended well, over its wall time.
    """

    island: int
    steps: int
    rounds: int
    tokens: int
    tokens_per_second: float | None
    compute_utilization: float | None
    bytes_sent: int
    socket_bytes_sent: int | None
    consensus_loss_before: float | None
    consensus_loss_after: float | None
    island_loss_after: float | None


def island_report(run_dir: Path, island: int) -> IslandReport:
    """What the events of one island add up to."""
    events = read_events(events_path(run_dir, island))
    # By step and round: after a resume from an earlier checkpoint the later run of the same step counts.
    steps = {event.step: event for event in events if isinstance(event, StepDone)}
    rounds = {event.round: event for event in events if isinstance(event, RoundDone)}
    consensus = [e.loss for e in events if isinstance(e, EvaluationDone) and e.scope == "consensus"]
    own = [e.loss for e in events if isinstance(e, EvaluationDone) and e.scope == "island"]
    sockets = [event.socket_bytes_sent for event in rounds.values() if event.socket_bytes_sent is not None]
    speed, utilization = _last_start(events)
    return IslandReport(
        island=island,
        steps=len(steps),
        rounds=len(rounds),
        tokens=round(_tokens(steps.values())),
        tokens_per_second=speed,
        compute_utilization=utilization,
        bytes_sent=sum(event.bytes_sent for event in rounds.values()),
        socket_bytes_sent=sum(sockets) if sockets else None,
        consensus_loss_before=consensus[0] if consensus else None,
        consensus_loss_after=consensus[-1] if consensus else None,
        island_loss_after=own[-1] if own else None,
    )


def _tokens(steps: Iterable[StepDone]) -> float:
    return sum(step.tokens_per_second * step.step_seconds for step in steps)


def _last_start(events: Sequence[Event]) -> tuple[float | None, float | None]:
    """Tokens a second and utilisation of the last start that trained to the end."""
    tokens = 0.0
    found: tuple[float | None, float | None] = (None, None)
    for event in events:
        match event:
            case RunStarted():
                tokens = 0.0
            case StepDone():
                tokens += _tokens([event])
            case RunEnded() if tokens and event.wall_seconds:
                found = (tokens / event.wall_seconds, event.compute_utilization)
    return found
