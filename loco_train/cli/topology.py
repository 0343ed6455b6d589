"""loco topology: who exchanges with whom, and how fast that brings islands together."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from loco_train.cli.output_file import PICTURES, check_output
from loco_train.cli.pictures import save_picture
from loco_train.config.load import load_run
from loco_train.errors import ConfigError
from loco_train.json_text import json_text

if TYPE_CHECKING:
    from torch import Tensor

    from loco_train.outer.spectrum import Topology


def topology(
    *,
    method: Annotated[str, typer.Option(help="A named method, or a YAML file.")] = "gasloc-1peer",
    islands: Annotated[int, typer.Option(min=1, max=1024, help="How many.")] = 8,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: mix2.peers=ring. May be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, help="Of how many rounds to show the weights.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="The run's: random peers follow from it.")] = 1234,
    draw: Annotated[Path | None, typer.Option(help="Draw the first round's graph: png, svg or pdf.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the peers of a method: contraction factor, spectral gap, and the weights of the first rounds.

    contraction: by which the squared disagreement of the islands shrinks in a round of mixing, in expectation. chi: the
    inverse of the smallest nonzero eigenvalue of I - E[W].
    """
    check_output("--draw", draw, endings=PICTURES)
    overrides = [f"method={method}", f"islands.count={islands}", *(f"method.{text}" for text in settings or [])]
    chosen = load_run("quickstart", overrides).config.method
    from loco_train.outer.draw import Draw
    from loco_train.outer.methods import peers
    from loco_train.outer.spectrum import measure

    mixings = {name: mix for name, mix in (("mix1", chosen.mix1), ("mix2", chosen.mix2)) if mix.peers != "nobody"}
    if not mixings:
        raise ConfigError(f"method {method} exchanges nothing: it has no topology")
    shown = {}
    for name, mix in mixings.items():
        part = peers(mix)
        shown[name] = (
            measure(part, islands=islands, seed=seed),
            [part.weights(islands, Draw(seed, number, purpose=name)).matrix for number in range(rounds)],
        )
        if draw is not None:
            first = part.weights(islands, Draw(seed, 0, purpose=name)).matrix
            target = draw if len(mixings) == 1 else draw.with_stem(f"{draw.stem}-{name}")
            draw_graph(first, target, title=f"{method}, {name}")
    if json:
        document = {
            name: {**asdict(found), "weights": [w.tolist() for w in each]} for name, (found, each) in shown.items()
        }
        print(json_text({"method": method, "islands": islands, **document}, indent=2))
        return
    for name, (found, each) in shown.items():
        _show(f"{method}, {name}: {mixings[name].peers}, {islands} islands", found, each)


def _show(title: str, found: Topology, weights: list[Tensor]) -> None:
    console = Console(soft_wrap=True)
    table = Table(title=title, show_header=False, title_justify="left")
    over = f"estimated from {found.sampled:,} rounds" if found.sampled else "exact"
    table.add_row("contraction of the squared disagreement", f"{found.contraction:.4f} a round ({over})")
    table.add_row("spectral gap", f"{1 / found.chi:.4f} (chi {found.chi:.4g})")
    table.add_row("exchanges", f"{found.links:g} pairs a round")
    console.print(table)
    for number, matrix in enumerate(weights):
        console.print(f"round {number}")
        for row in matrix.tolist():
            console.print("  " + "  ".join(f"{w:.3f}" if w else "  .  " for w in row), highlight=False)


def draw_graph(weights: Tensor, path: Path, *, title: str) -> None:
    """Islands on a circle, a line for each pair that exchanges, its width by the weight."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5))
    axes = figure.add_subplot(title=title, aspect="equal")
    axes.axis("off")
    count = len(weights)
    place = [(math.sin(2 * math.pi * i / count), math.cos(2 * math.pi * i / count)) for i in range(count)]
    for i in range(count):
        for j in range(i):
            if weight := float(weights[i, j]):
                axes.plot(*zip(place[i], place[j], strict=True), color="tab:blue", linewidth=6 * weight, zorder=1)
    across, up = zip(*place, strict=True)
    axes.scatter(across, up, s=300, color="white", edgecolors="black", zorder=2)
    for i, (x, y) in enumerate(place):
        axes.text(x, y, str(i), ha="center", va="center", zorder=3)
    save_picture(figure, path)
