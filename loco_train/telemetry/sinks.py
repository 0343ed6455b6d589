"""Sinks: a file of JSON lines, the console, TensorBoard."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loco_train.json_text import json_text
from loco_train.telemetry.events import (
    BlocksMeasured,
    CheckpointSaved,
    EvaluationDone,
    Event,
    HealthMeasured,
    Mix2Changed,
    RoundDone,
    RunEnded,
    RunFailed,
    RunStarted,
    StepDone,
)
from loco_train.units import format_bytes

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class JsonlSink:
    """One JSON line an event, with its `type` and `time` (seconds since 1970); appended to across resumes.

    A loss that is NaN or infinite is written as null."""

    def __init__(self, path: Path) -> None:
        torn = _is_torn(path)
        self._file = path.open("a", encoding="utf-8")
        if torn:
            # A line that a kill cut off would swallow the next one.
            self._file.write("\n")

    def write(self, event: Event) -> None:
        line = {"type": type(event).__name__, "time": time.time(), **asdict(event)}
        self._file.write(json_text(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _is_torn(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


class ConsoleSink:
    """Readable lines; of steps one every few seconds in a file, a progress bar on a terminal."""

    def __init__(self, *, total_steps: int, seconds_between_steps: float = 5.0, console: Console | None = None) -> None:
        self._console = console or Console(soft_wrap=True, highlight=False)
        self._total_steps = total_steps
        self._seconds_between_steps = seconds_between_steps
        self._last_step_time = -math.inf
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("", total=total_steps)

    def write(self, event: Event) -> None:
        text = describe(event, total_steps=self._total_steps)
        if isinstance(event, StepDone):
            # A task whose description is text would read [brackets] in it as markup; there are none in a step's.
            self._bar.update(self._task, completed=event.step, description=text)
            self._bar.start()
            if self._console.is_terminal or not self._is_due():
                return
        if text:
            self._console.print(text, markup=False)

    def close(self) -> None:
        self._bar.stop()

    def _is_due(self) -> bool:
        now = time.monotonic()
        due = now - self._last_step_time >= self._seconds_between_steps
        if due:
            self._last_step_time = now
        return due


def describe(event: Event, *, total_steps: int) -> str:
    """One line for people."""
    at = f"step {event.step}/{total_steps}"
    match event:
        case RunStarted():
            start = f"resumed from {event.resumed_from}" if event.resumed_from else "started"
            return (
                f"island {event.island} of {event.islands} {start}: run {event.run_name}, {event.ranks} ranks, "
                f"{event.parameters / 1e6:.2f} M parameters, at {at}"
            )
        case StepDone():
            return (
                f"{at}  loss {event.loss:.4f}  lr {event.lr:.2e}  grad norm {event.grad_norm:.3f}  "
                f"{event.tokens_per_second:,.0f} tokens/s"
            )
        case RoundDone():
            return (
                f"{at}  round {event.round} done: compute {event.compute_seconds:.2f} s, wait "
                f"{event.wait_seconds:.2f} s, outer {event.outer_seconds:.2f} s, sent {format_bytes(event.bytes_sent)}"
            )
        case EvaluationDone():
            return f"{at}  held-out loss of the {event.scope} {event.loss:.4f}, perplexity {event.perplexity:.2f}"
        case HealthMeasured():
            return f"{at}  islands apart from their mean: JS {event.js:.4f}, L2 {event.l2:.4g}"
        case Mix2Changed():
            blocks = "the whole model" if event.blocks is None else ", ".join(event.blocks) or "no block"
            usual = "" if event.usual_js is None else f", usually {event.usual_js:.4f}"
            return f"{at}  mix2 is now {event.peers} on {blocks}: JS {event.js:.4f}{usual}"
        case BlocksMeasured():
            sent = format_bytes(sum(event.bytes_by_block[block] for block in event.chosen))
            return f"{at}  mix2 takes {', '.join(event.chosen) or 'no block'} ({sent} to a peer)"
        case CheckpointSaved():
            return f"{at}  saved {event.path} ({format_bytes(event.bytes)} in {event.seconds:.2f} s)"
        case RunFailed():
            return f"{at}  ended by {event.error}"
        case RunEnded():
            return f"{at}  done: {event.tokens:,} tokens, {event.compute_utilization:.0%} of the time in inner steps"
    return ""


class TensorBoardSink:
    """Scalars by step: loss, learning rate, norms, speed, round phases, bytes, spread, held-out losses, consensus
    health."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = _summary_writer(folder)

    def write(self, event: Event) -> None:
        if isinstance(event, RunStarted) and event.resumed_from:
            # What was drawn past the checkpoint happens again; TensorBoard would show both.
            self._writer.close()
            self._writer = _summary_writer(self._folder, purge_step=event.step + 1)
        for name, value in scalars(event).items():
            self._writer.add_scalar(name, value, event.step)
        if not isinstance(event, StepDone):
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _summary_writer(folder: Path, *, purge_step: int | None = None) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step)


def scalars(event: Event) -> dict[str, float]:
    """What of an event is drawn over steps, by TensorBoard tag."""
    match event:
        case StepDone():
            return {f"step/{name}": getattr(event, name) for name in ("loss", "lr", "grad_norm", "tokens_per_second")}
        case RoundDone():
            names = (
                "compute_seconds",
                "wait_seconds",
                "outer_seconds",
                "bytes_sent",
                "pseudo_gradient_norm",
                "spread_l2",
            )
            values = {f"round/{name}": getattr(event, name) for name in names}
            # Gossip gives no mean to be away from; TensorBoard takes numbers only.
            return {tag: value for tag, value in values.items() if value is not None}
        case EvaluationDone():
            return {f"heldout/{event.scope}_loss": event.loss}
        case HealthMeasured():
            l2 = {f"health_l2/{block}": distance for block, distance in event.l2_by_block.items()}
            return {"health/js": event.js, "health/l2": event.l2, **l2, **_js_by_block(event)}
        case BlocksMeasured():
            return _js_by_block(event)
        case Mix2Changed():
            return {"health/mix2_wide": float(event.wide)}
    return {}


def _js_by_block(event: HealthMeasured | BlocksMeasured) -> dict[str, float]:
    return {f"health_js/{block}": distance for block, distance in event.js_by_block.items()}
