"""A run's events read back, and what they add up to over its islands."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from loco_train.telemetry.events import EVENTS, EvaluationDone, Event, RoundDone, RunEnded, StepDone


def events_path(run_dir: Path, island: int) -> Path:
    """Where an island writes its events."""
    return run_dir / "islands" / str(island) / "events.jsonl"


def read_events(path: Path) -> list[Event]:
    """All events of a file, in order. A last line cut off by a kill is left out."""
    events: list[Event] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        kind = EVENTS.get(data.get("type"))
        if kind is not None:
            names = {field.name for field in fields(kind)}
            events.append(kind(**{name: value for name, value in data.items() if name in names}))
    return events


@dataclass(frozen=True)
class IslandReport:
    """One island's run so far. Losses in nats; None where not measured. A step or round done twice counts once."""

    island: int
    steps: int
    rounds: int
    tokens: int
    tokens_per_second: float
    bytes_sent: int
    socket_bytes_sent: int | None
    compute_utilization: float | None
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
    ended = [e for e in events if isinstance(e, RunEnded)]
    seconds = sum(event.step_seconds for event in steps.values())
    island_tokens = sum(event.tokens_per_second * event.step_seconds for event in steps.values())
    sockets = [event.socket_bytes_sent for event in rounds.values()]
    return IslandReport(
        island=island,
        steps=len(steps),
        rounds=len(rounds),
        tokens=round(island_tokens),
        tokens_per_second=island_tokens / seconds if seconds else 0.0,
        bytes_sent=sum(event.bytes_sent for event in rounds.values()),
        socket_bytes_sent=sum(b for b in sockets if b is not None) if any(b is not None for b in sockets) else None,
        compute_utilization=ended[-1].compute_utilization if ended else None,
        consensus_loss_before=consensus[0] if consensus else None,
        consensus_loss_after=consensus[-1] if consensus else None,
        island_loss_after=own[-1] if own else None,
    )
