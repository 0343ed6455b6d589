"""loco simulate --problem text: runs over seeds and swept settings, a table and a plot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from loco_train.cli.checkpoint_progress import progress_bar
from loco_train.cli.pictures import save_picture
from loco_train.cli.simulate_options import method_config
from loco_train.errors import NonFinite
from loco_train.json_text import json_text

if TYPE_CHECKING:
    from loco_train.config.schema import RunConfig


@dataclass(frozen=True)
class TextRuns:
    """What is asked for: one run for each seed and each combination of swept values."""

    method: str
    islands: int
    steps: list[int]
    settings: tuple[str, ...]
    rounds: int
    inner_lr: float
    batch: int
    warm_up_steps: int
    seeds: tuple[int, ...]
    sweeps: Mapping[str, tuple[str, ...]]

    def points(self) -> Iterator[dict[str, str]]:
        """Every combination of swept values, by setting."""
        for values in itertools.product(*self.sweeps.values()):
            yield dict(zip(self.sweeps, values, strict=True))


def show_text(runs: TextRuns, *, json: bool, plot: Path | None) -> None:
    """Do all runs; print them as a table, or as JSON."""
    configs = [(point, _config(runs, point)) for point in runs.points()]  # all are checked before the first one runs
    rows = []
    with progress_bar("rounds", total=len(configs) * len(runs.seeds) * runs.rounds) as advance:
        for (point, config), seed in itertools.product(configs, runs.seeds):
            rows.append(_run(runs, point, config, seed, on_round=lambda: advance(1)))
    if all("diverged" in row for row in rows):
        raise NonFinite(f"no run came to its end: {rows[0]['diverged']}", fix="lower inner or outer learning rates")
    if plot is not None:
        _plot(rows, plot, title=f"{runs.method}, {runs.islands} islands")
    if json:
        print(
            json_text({"method": runs.method, "islands": runs.islands, "rounds": runs.rounds, "runs": rows}, indent=2)
        )
    else:
        _show(runs, rows)


def _run(runs: TextRuns, point: Mapping[str, str], config: RunConfig, seed: int, *, on_round: Any) -> dict[str, Any]:
    from loco_train.simulation.text import Corpus, TextSettings, run_text

    settings = TextSettings(
        rounds=runs.rounds,
        inner_lr=float(point.get("inner_lr", runs.inner_lr)),
        batch=runs.batch,
        warm_up_steps=runs.warm_up_steps,
        seed=seed,
    )
    losses: list[float] = []

    def told(loss: float) -> None:
        losses.append(loss)
        on_round()

    try:
        corpus = Corpus.of_standard_library(settings.shape.sequence)
        result = asdict(run_text(config, settings, corpus, islands=runs.islands, on_round=told))
    except NonFinite as error:
        result = {"loss": math.inf, "diverged": error.problem}
    return {**point, "seed": seed, **result, "losses": losses}


def _config(runs: TextRuns, point: Mapping[str, str]) -> RunConfig:
    swept = [f"{name}={value}" for name, value in point.items() if name != "inner_lr"]
    return method_config(runs.method, islands=runs.islands, steps=runs.steps, settings=[*runs.settings, *swept])


def _show(runs: TextRuns, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = [*runs.sweeps, "seed", "loss", "island_loss", "l2", "js", "sent_bytes"]
    table = Table(title=f"{runs.method}, {runs.islands} islands, {runs.rounds} rounds", title_justify="left")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        cells = (row.get(column, "") if column != "loss" or "diverged" not in row else "diverged" for column in columns)
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells))
    console = Console()
    console.print(table)
    best = min(rows, key=lambda row: float(row["loss"]))
    if len(rows) > 1:
        chosen = ", ".join(f"{name} {best[name]}" for name in (*runs.sweeps, "seed"))
        console.print(f"lowest held-out loss: {best['loss']:.4f} with {chosen}", highlight=False)


def _plot(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="round", ylabel="held-out loss of the consensus, nats")
    for row in rows:
        label = ", ".join(f"{k} {v}" for k, v in row.items() if isinstance(v, str) or k == "seed")
        axes.plot(range(1, len(row["losses"]) + 1), row["losses"], label=label)
    axes.legend(fontsize="small")
    save_picture(figure, path)
