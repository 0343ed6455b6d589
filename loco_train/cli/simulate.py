"""loco simulate: a method over many islands in one process."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from loco_train.cli.checkpoint_progress import progress_bar
from loco_train.cli.simulate_text import TextRuns, method_config, parse_sweeps, show_text, steps_of
from loco_train.errors import ConfigError
from loco_train.json_text import json_text

if TYPE_CHECKING:
    from torch import Tensor


class Problem(str, Enum):
    """What the islands train."""

    quadratic = "quadratic"
    text = "text"


def simulate(
    *,
    problem: Annotated[
        Problem, typer.Option(help="quadratic: exact, float64, deterministic. text: a small Llama on real text.")
    ] = Problem.quadratic,
    method: Annotated[str, typer.Option(help="A named method, or a YAML file.")] = "diloco",
    islands: Annotated[int, typer.Option(min=1, help="How many.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Outer rounds.")] = 12,
    inner_steps: Annotated[str, typer.Option(help="Of every island, or of each: 4,4,2,...")] = "4",
    inner_lr: Annotated[
        float | None, typer.Option(help="Of the inner steps. Default: quadratic 0.05, text 4e-3 (the peak).")
    ] = None,
    shape: Annotated[str, typer.Option(help="quadratic: of the matrix that is trained, ROWSxCOLUMNS.")] = "16x8",
    seed: Annotated[int, typer.Option(min=0, help="Of the problem and of random peers.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: outer.lr=0.8. May be repeated.")
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(help="quadratic: an exchange that fails: ROUND:I-J, rounds from 0. May be repeated."),
    ] = None,
    dump: Annotated[Path | None, typer.Option(help="quadratic: write everything to this .npz file.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="text: sequences of all islands together in a step.")] = 32,
    warm_up_steps: Annotated[
        int, typer.Option(min=0, help="text: data parallel steps before the first round, shared by all islands.")
    ] = 300,
    seeds: Annotated[str, typer.Option(help="text: several runs, 0,1,2: of weights, data order and peers.")] = "",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="text: runs for each of these values: outer.lr=0.4,0.7,1.0, or inner_lr=... May be repeated."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="text: draw the runs' held-out losses: png, svg or pdf.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a method over many islands in one process, with the outer code of the trainer.

    quadratic: island m minimises 1/2 sum a_m (x - c_m)^2 over one matrix, which counts as the block `embedding`. The
    dump holds curvature, center, final [M, rows, columns]; start, end, base, pseudo_gradient [R, M, rows, columns];
    mix1, mix2 [R, M, M], the weights that were used, the identity where nothing was mixed.

    text: a Llama of 0.13 million parameters over bytes of the Python standard library, AdamW inside. Prints the loss of
    the consensus on held-out text, and how far the islands are apart (L2, JS distance).
    """
    steps = steps_of(inner_steps, islands)
    own: dict[Problem, dict[str, object]] = {
        Problem.quadratic: {"--fail": fail, "--dump": dump},
        Problem.text: {"--sweep": sweep, "--plot": plot, "--seeds": seeds},
    }
    for other in set(Problem) - {problem}:
        for option in (name for name, given in own[other].items() if given):
            raise ConfigError(f"{option} is for --problem {other.value}", got=f"--problem {problem.value}")
    lr = _positive({Problem.quadratic: 0.05, Problem.text: 4e-3}[problem] if inner_lr is None else inner_lr)
    if problem is Problem.text:
        runs = TextRuns(
            method, islands, steps, tuple(settings or ()), rounds, lr, batch, warm_up_steps,
            _seeds(seeds or str(seed)), parse_sweeps(sweep or []),
        )  # fmt: skip
        show_text(runs, json=json, plot=plot)
        return
    failures = _failures(fail or [], islands=islands, rounds=rounds)
    config = method_config(method, islands=islands, steps=steps, settings=settings or [])
    from loco_train.simulation.quadratic import Quadratic, run_quadratic
    from loco_train.simulation.quadratic import dump as write_dump

    posed = Quadratic.seeded(
        islands=islands,
        shape=_shape(shape),
        seed=seed,
        inner_steps=steps,
        inner_lr=lr,
    )
    with progress_bar("rounds", total=rounds) as advance:
        done, final = run_quadratic(
            config, posed, rounds=rounds, seed=seed, failures=failures, on_round=lambda: advance(1)
        )
    if dump is not None:
        write_dump(dump, posed, done, final)
    optimum = (posed.curvature * posed.center).sum(0) / posed.curvature.sum(0)
    spreads = [_spread(each.end) for each in done]
    result = {
        "method": method,
        "islands": islands,
        "rounds": rounds,
        "spread_l2": [*spreads[-1:], _spread(final)],
        "distance_to_optimum_l2": float((final.mean(0) - optimum.flatten()).norm()),
        "dump": dump,
    }
    if json:
        print(json_text(result, indent=2))
    else:
        _show(result)


def _spread(points: Tensor) -> float:
    """Mean distance of the islands from their mean."""
    return float((points - points.mean(0)).norm(dim=1).mean())


def _show(result: dict[str, Any]) -> None:
    table = Table(title="Simulation", show_header=False, title_justify="left")
    before, after = result["spread_l2"]
    table.add_row("method", f"{result['method']}, {result['islands']} islands, {result['rounds']} rounds")
    table.add_row("islands' distance from their mean, before the last outer step", f"{before:.6g}")
    table.add_row("and after it", f"{after:.6g}")
    table.add_row("their mean's distance from the optimum", f"{result['distance_to_optimum_l2']:.6g}")
    if result["dump"]:
        table.add_row("all of it", str(result["dump"]))
    Console(soft_wrap=True).print(table)


def _shape(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise ConfigError("--shape is no shape of a matrix", got=repr(text), allowed="ROWSxCOLUMNS, as 16x8")
    return int(match[1]), int(match[2])


def _positive(inner_lr: float) -> float:
    if not 0 < inner_lr < float("inf"):
        raise ConfigError("--inner-lr must be positive", got=inner_lr)
    return inner_lr


def _seeds(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ConfigError("--seeds are no seeds", got=repr(text), allowed="whole numbers: 0,1,2")
    return tuple(int(part) for part in parts)


def _failures(given: list[str], *, islands: int, rounds: int) -> Any:
    failed: dict[int, set[frozenset[int]]] = {}
    for text in given:
        match = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
        number, one, two = map(int, match.groups()) if match else (rounds, 0, 0)
        if not (number < rounds and one != two and max(one, two) < islands):
            raise ConfigError(
                "--fail names no exchange",
                got=repr(text),
                allowed=f"ROUND:I-J with a round from 0 to {rounds - 1} and two islands from 0 to {islands - 1}",
            )
        failed.setdefault(number, set()).add(frozenset((one, two)))
    return lambda number: failed.get(number, ())
