"""loco launch: all islands of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loco_train.config.load import load_run
from loco_train.config.schema import RunConfig
from loco_train.json_text import json_text
from loco_train.launch.local import LaunchResult, launch_local
from loco_train.telemetry.report import IslandReport, events_path, island_report
from loco_train.units import format_bytes

app = typer.Typer(no_args_is_help=True, help="Start all islands of a run and watch them.")


@app.callback()
def launch() -> None:
    """Start all islands of a run and watch them."""


@app.command(epilog="Example: [bold]loco launch local --run quickstart --islands 3 rounds=20 run_dir=runs/three[/bold]")
def local(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Settings to change, model=name too.")
    ] = None,
    *,
    run: Annotated[str, typer.Option(help="A run's YAML file, or the name of one in configs/runs.")],
    islands: Annotated[int | None, typer.Option(min=1, help="How many; the same as islands.count=N.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON summary at the end.")] = False,
) -> None:
    """Train with all islands on this machine, each a job of its own.

    The same command again goes on from the last checkpoint. Each island's output is in RUN/logs. Ctrl-C ends all
    islands. The exit code is that of the first island that failed.
    """
    counts = [f"islands.count={islands}"] if islands is not None else []
    resolved = load_run(run, [*(overrides or []), *counts])
    result = launch_local(resolved)
    reports = _reports(resolved.config)
    if json:
        print(json_text(_document(resolved.config, result, reports), indent=2))
    elif result.exit_code == 0:
        Console().print(_table(reports))
    raise typer.Exit(result.exit_code)


def _reports(config: RunConfig) -> list[IslandReport]:
    run_dir = Path(config.run_dir)
    indices = range(config.islands.count)
    return [island_report(run_dir, index) for index in indices if events_path(run_dir, index).is_file()]


def _document(config: RunConfig, result: LaunchResult, reports: list[IslandReport]) -> dict[str, object]:
    islands = [asdict(report) for report in reports]
    return {"run": config.name, "run_dir": config.run_dir, **asdict(result), "islands": islands}


def _table(reports: list[IslandReport]) -> Table:
    table = Table(title="Islands", title_justify="left")
    for name in ("island", "steps", "rounds", "tokens/s", "sent", "held-out loss before", "after"):
        table.add_column(name, justify="right")
    for report in reports:
        losses = (report.consensus_loss_before, report.consensus_loss_after)
        shown = ("-" if loss is None else f"{loss:.4f}" for loss in losses)
        speed = "-" if report.tokens_per_second is None else f"{report.tokens_per_second:,.0f}"
        counts = (str(report.island), f"{report.steps:,}", f"{report.rounds:,}", speed)
        table.add_row(*map(Text, (*counts, format_bytes(report.bytes_sent), *shown)))
    return table
