"""A run followed from outside, by the events that its islands write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from loco_train.config.schema import RunConfig
from loco_train.telemetry.events import EvaluationDone, Event, RoundDone, RunFailed, RunStarted, StepDone
from loco_train.telemetry.report import events_path, parse_record


class EventTail:
    """The events that are added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.is_file() else 0

    def read(self) -> list[Event]:
        """Events of whole lines since the last call."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        records = map(parse_record, whole.decode(errors="replace").splitlines())
        return [record.event for record in records if record is not None]


class Standing:
    """Where all islands of a run stand since this start."""

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self.rounds_in_all = config.rounds
        self.steps_in_all = config.rounds * sum(config.steps_per_round)
        self._tails = [EventTail(events_path(run_dir, island)) for island in range(config.islands.count)]
        self._last: dict[int, Event] = {}
        self._last_step: dict[int, StepDone] = {}
        self.failures: dict[int, RunFailed] = {}

    def update(self) -> list[str]:
        """Read what is new; a line for each round that all islands have done, and for each held-out loss."""
        lines: list[str] = []
        for island, tail in enumerate(self._tails):
            for event in tail.read():
                lines += self._take(island, event)
        return lines

    @property
    def steps(self) -> int:
        """Inner steps done, summed over the islands."""
        return sum(event.step for event in self._last.values())

    @property
    def round(self) -> int:
        """Rounds that every island has done."""
        return min((self._round_of(island) for island in range(len(self._tails))), default=0)

    def summary(self) -> str:
        """Mean training loss of the islands, and the tokens that they consume together."""
        steps = self._last_step.values()
        if not steps:
            return "starting"
        loss = sum(step.loss for step in steps) / len(steps)
        return f"loss {loss:.4f}  {sum(step.tokens_per_second for step in steps):,.0f} tokens/s"

    def _round_of(self, island: int) -> int:
        return self._last[island].round if island in self._last else 0

    def _take(self, island: int, event: Event) -> list[str]:
        before = self.round
        self._last[island] = event
        at = f"round {event.round}/{self.rounds_in_all}"
        match event:
            case RunStarted(resumed_from=str()):
                if event.round == self.rounds_in_all:
                    return [f"island {island} was at {at} already: nothing is left to train"]
                return [f"island {island} goes on at {at}, step {event.step}"]
            case StepDone():
                self._last_step[island] = event
            case RunFailed():
                self.failures[island] = event
            case RoundDone() if self.round > before:
                return [f"{at}  {self.summary()}  waited {event.wait_seconds:.2f} s"]
            case EvaluationDone(scope="consensus") if island == 0:
                return [f"{at}  held-out loss {event.loss:.4f} (perplexity {event.perplexity:.2f}) of the consensus"]
            case EvaluationDone(scope="island"):
                # Before the outer step that ends its round.
                at = f"round {event.round + 1}/{self.rounds_in_all}"
                return [f"{at}  held-out loss {event.loss:.4f} (perplexity {event.perplexity:.2f}) of island {island}"]
        return []


class View(Protocol):
    """Shows a run's progress to a person."""

    def show(self, standing: Standing, lines: list[str]) -> None: ...


class PlainView:
    """Lines on the error stream; standard output stays for results."""

    def show(self, standing: Standing, lines: list[str]) -> None:
        for line in lines:
            print(line, file=sys.stderr, flush=True)


class BarView:
    """A bar over the inner steps of all islands, with the lines of `PlainView` above it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def show(self, standing: Standing, lines: list[str]) -> None:
        for line in lines:
            self._progress.console.print(Text(line))
        title = f"round {standing.round}/{standing.rounds_in_all}  {standing.summary()}"
        self._progress.update(self._task, completed=standing.steps, total=standing.steps_in_all, description=title)


@contextmanager
def progress_view() -> Iterator[View]:
    """A bar on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainView()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield BarView(progress, progress.add_task("starting", total=None))
