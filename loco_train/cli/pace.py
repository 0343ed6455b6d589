"""loco pace: how many inner steps each island should do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loco_train.errors import ConfigError
from loco_train.json_text import json_text
from loco_train.outer.pace import balanced_inner_steps
from loco_train.telemetry.measured_times import measured_times


def pace(
    run_dir: Annotated[Path | None, typer.Argument(help="A run's folder: its islands' own times.")] = None,
    *,
    step_seconds: Annotated[str | None, typer.Option(help="Of one inner step, of each island: 1.2,1.2,2.5")] = None,
    exchange_seconds: Annotated[
        str | None, typer.Option(help="Of one exchange with one peer, of each island; one number for all.")
    ] = None,
    peers: Annotated[int, typer.Option(min=1, help="With how many others an island exchanges in a round.")] = 1,
    most: Annotated[int, typer.Option(min=1, help="Inner steps of an island that is not slow (H).")] = 30,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Choose method.inner_steps so that nobody waits for the slowest island (GASLoC's rule).

    Slow islands get fewer steps, so that no round takes over 1.1 times the median island's. Of a run's folder the
    median step counts, and the shortest wait at an outer step: in it an island came last, and waited for the network
    alone.
    """
    steps, exchanges = _times(run_dir, step_seconds, exchange_seconds, peers=peers)
    chosen = balanced_inner_steps(step_seconds=steps, exchange_seconds=exchanges, most=most)
    if json:
        print(json_text({"inner_steps": chosen, "step_seconds": steps, "exchange_seconds": exchanges}))
    else:
        print(f"method.inner_steps=[{','.join(map(str, chosen))}]")


def _times(
    run_dir: Path | None, step_seconds: str | None, exchange_seconds: str | None, *, peers: int
) -> tuple[list[float], list[float]]:
    """Of a step and of all exchanges of a round, by island."""
    if run_dir is not None and step_seconds is None and exchange_seconds is None:
        measured = measured_times(run_dir)
        return list(measured.step_seconds), list(measured.exchange_seconds)
    if run_dir is not None or step_seconds is None or exchange_seconds is None:
        raise ConfigError(
            "times come from one place",
            allowed="the folder of a run, or both --step-seconds and --exchange-seconds",
            fix="loco pace runs/mine, or loco pace --step-seconds 1,1,2.5 --exchange-seconds 4",
        )
    steps, exchanges = _numbers("--step-seconds", step_seconds), _numbers("--exchange-seconds", exchange_seconds)
    each = exchanges * len(steps) if len(exchanges) == 1 else exchanges
    return steps, [peers * seconds for seconds in each]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} are no numbers", got=repr(text), allowed="seconds: 1.2,1.2,2.5") from None
