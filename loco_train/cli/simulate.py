"""loco simulate: a method over many islands in one process."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from loco_train.cli.checkpoint_progress import progress_bar
from loco_train.cli.output_file import PICTURES, check_output, whole_file
from loco_train.cli.simulate_options import (
    method_config,
    parse_failures,
    parse_lr,
    parse_seeds,
    parse_shape,
    parse_steps,
    parse_sweeps,
)
from loco_train.cli.simulate_text import TextRuns, show_text
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
    islands: Annotated[int, typer.Option(min=1, max=1024, help="How many.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Outer rounds.")] = 12,
    inner_steps: Annotated[str, typer.Option(help="Of every island, or of each: 4,4,2,...")] = "4",
    inner_lr: Annotated[
        float | None, typer.Option(help="Of the inner steps. Default: quadratic 0.05, text 4e-3 (the peak).")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="quadratic: of the matrix that is trained, ROWSxCOLUMNS. Default: 16x8.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of the problem and of random peers. Default: 0.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: outer.lr=0.8. May be repeated.")
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(help="quadratic: an exchange that fails: ROUND:I-J, rounds from 0. May be repeated."),
    ] = None,
    dump: Annotated[Path | None, typer.Option(help="quadratic: write everything to this .npz file.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=65536, help="text: sequences of all islands together in a step. Default: 32."),
    ] = None,
    warm_up_steps: Annotated[
        int | None,
        typer.Option(
            min=0, max=1_000_000, help="text: data parallel steps that all islands share before round 0. Default: 300."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="text: several runs, 0,1,2: of weights, data order and peers.")
    ] = None,
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
    steps = parse_steps(inner_steps, islands)
    _refuse_options_of_the_other(
        problem,
        quadratic={"--shape": shape, "--fail": fail, "--dump": dump},
        text={
            "--batch": batch,
            "--warm-up-steps": warm_up_steps,
            "--sweep": sweep,
            "--plot": plot,
            "--seeds": seeds,
        },
    )
    default_lr = 0.05 if problem is Problem.quadratic else 4e-3
    lr = parse_lr("--inner-lr", default_lr if inner_lr is None else inner_lr)
    if problem is Problem.text:
        if seed is not None and seeds is not None:
            raise ConfigError("seeds are given twice", got=f"--seed {seed} --seeds {seeds}", fix="leave one of them")
        check_output("--plot", plot, endings=PICTURES)
        runs = TextRuns(
            method=method,
            islands=islands,
            steps=steps,
            settings=tuple(settings or ()),
            rounds=rounds,
            inner_lr=lr,
            batch=32 if batch is None else batch,
            warm_up_steps=300 if warm_up_steps is None else warm_up_steps,
            seeds=parse_seeds(str(seed or 0) if seeds is None else seeds),
            sweeps=parse_sweeps(sweep or [], settings=settings or []),
        )
        show_text(runs, json=json, plot=plot)
        return
    failures = parse_failures(fail or [], islands=islands, rounds=rounds)
    size = parse_shape(shape or "16x8", islands=islands, rounds=rounds)
    check_output("--dump", dump)
    config = method_config(method, islands=islands, steps=steps, settings=settings or [])
    if config.method.rule == "none" and fail:
        raise ConfigError("data parallelism knows no failed exchange", got=f"--fail {fail[0]}", fix="leave it out")
    from loco_train.simulation.quadratic import Quadratic, run_quadratic
    from loco_train.simulation.quadratic import dump as write_dump

    posed = Quadratic.seeded(islands=islands, shape=size, seed=seed or 0, inner_steps=steps, inner_lr=lr)
    with progress_bar("rounds", total=rounds) as advance:
        done, final = run_quadratic(
            config, posed, rounds=rounds, seed=seed or 0, failures=failures, on_round=lambda: advance(1)
        )
    if dump is not None:
        with whole_file(dump) as file:
            write_dump(file, posed, done, final)
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


def _refuse_options_of_the_other(problem: Problem, *, quadratic: dict[str, object], text: dict[str, object]) -> None:
    other, options = ("text", text) if problem is Problem.quadratic else ("quadratic", quadratic)
    for option, given in options.items():
        if given not in (None, []):
            raise ConfigError(f"{option} is for --problem {other}", got=f"--problem {problem.value}")


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
