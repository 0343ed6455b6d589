"""loco pace: how many inner steps each island should do."""

from __future__ import annotations

from typing import Annotated

import typer

from loco_train.errors import ConfigError
from loco_train.json_text import json_text
from loco_train.outer.pace import balanced_inner_steps


def pace(
    *,
    step_seconds: Annotated[str, typer.Option(help="Of one inner step, of each island: 1.2,1.2,2.5")],
    exchange_seconds: Annotated[
        str, typer.Option(help="Of one exchange with one peer, of each island; one number for all.")
    ],
    peers: Annotated[int, typer.Option(min=1, help="With how many others an island exchanges in a round.")] = 1,
    most: Annotated[int, typer.Option(min=1, help="Inner steps of an island that is not slow (H).")] = 30,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Choose method.inner_steps so that nobody waits for the slowest island (GASLoC's rule).

    Times are in events.jsonl of a run: step_seconds of StepDone, and wait_seconds of RoundDone where all islands are
    equally fast. Slow islands get fewer steps, so that all rounds take about as long as the median island's.
    """
    steps = _numbers("--step-seconds", step_seconds)
    exchanges = _numbers("--exchange-seconds", exchange_seconds)
    exchanges = exchanges * len(steps) if len(exchanges) == 1 else exchanges
    chosen = balanced_inner_steps(step_seconds=steps, exchange_seconds=[peers * e for e in exchanges], most=most)
    if json:
        print(json_text({"inner_steps": chosen}))
    else:
        print(f"method.inner_steps=[{','.join(map(str, chosen))}]")


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} are no numbers", got=repr(text), allowed="seconds: 1.2,1.2,2.5") from None
