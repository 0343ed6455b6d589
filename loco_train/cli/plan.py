"""loco plan: what every method would cost, before a cluster is booked."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from loco_train.config.load import available, load_run
from loco_train.errors import ConfigError
from loco_train.json_text import json_text
from loco_train.planning.model_size import share_of
from loco_train.planning.plan import QUALITY_SOURCE, Cluster, PlanRow, plan
from loco_train.units import Bandwidth, format_bytes

if TYPE_CHECKING:
    from loco_train.config.method import MethodConfig
    from loco_train.config.model import ModelConfig

# int8 and int4 have an fp32 scale for each 128 elements.
WIRE_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1 + 4 / 128, "int4": 0.5 + 4 / 128}


def plan_command(
    *,
    bandwidth: Annotated[str, typer.Option(help="Of an island's link, each way at once: 200Mbit/s, 10Gbps.")],
    params: Annotated[float | None, typer.Option(help="Parameters: 1.5e9. Or name a model.")] = None,
    model: Annotated[str | None, typer.Option(help="A named model; its blocks give the size of a subset.")] = None,
    islands: Annotated[int, typer.Option(min=2, help="How many.")] = 8,
    inner_steps: Annotated[int, typer.Option(min=1, help="Of a round (H).")] = 100,
    step_seconds: Annotated[float | None, typer.Option(help="Of an inner step of an island, as measured.")] = None,
    flops: Annotated[float | None, typer.Option(help="Or: peak FLOP/s of one GPU; with --tokens-per-step.")] = None,
    mfu: Annotated[float, typer.Option(help="Model FLOPs utilization, 0 to 1, with --flops.")] = 0.4,
    gpus: Annotated[int, typer.Option(min=1, help="Of one island: one rank each.")] = 8,
    tokens_per_step: Annotated[float | None, typer.Option(help="Of one island.")] = None,
    tokens: Annotated[float | None, typer.Option(help="To train on, for the days that takes.")] = None,
    wire: Annotated[str, typer.Option(help=f"Format between islands: {', '.join(WIRE_BYTES)}.")] = "fp32",
    subset: Annotated[
        float, typer.Option(help="Share of the parameters that a subset mix2 sends, where no model is named.")
    ] = 0.43,
    method: Annotated[list[str] | None, typer.Option(help="Only this one. May be repeated.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of rows.")] = False,
) -> None:
    """Utilization, bytes and time of a round under every method, by bandwidth alone: latency does not count.

    The time model reproduces the tables of Factored Gossip DiLoCo within a point.
    """
    chosen = _model(model)
    size = _positive("--params", params) if chosen is None else float(chosen.parameters)
    cluster = Cluster(
        parameters=size,
        islands=islands,
        inner_steps=inner_steps,
        step_seconds=_step_seconds(step_seconds, flops, mfu, gpus=gpus, parameters=size, tokens=tokens_per_step),
        bits_per_second=_bandwidth(bandwidth),
        bytes_per_parameter=_wire(wire),
        ranks=gpus,
        tokens_per_step=tokens_per_step,
    )
    if tokens is not None and tokens_per_step is None:
        raise ConfigError("--tokens needs --tokens-per-step", fix="add the tokens of one inner step of one island")
    methods = {name: _method(name, cluster) for name in method or available("methods")}
    subsets = {name: _share(each, chosen, subset) for name, each in methods.items()}
    rows = plan(methods, cluster, subsets=subsets, tokens=tokens)
    if json:
        print(json_text([asdict(row) for row in rows], indent=2))
    else:
        _show(rows, cluster, bandwidth=bandwidth, wire=wire)


def _model(name: str | None) -> ModelConfig | None:
    return None if name is None else load_run("quickstart", [f"model={name}"]).config.model


def _method(name: str, cluster: Cluster) -> MethodConfig:
    alone = load_run("quickstart", [f"method={name}", "islands.count=2"]) if name != "data-parallel" else None
    if alone is None:
        return load_run("quickstart", ["method=data-parallel", "islands.count=1"]).config.method
    # H of a streamed model is its rounds' steps times its fragments.
    parts = alone.config.method.streaming.fragments if alone.config.method.rule == "streaming" else 1
    steps = max(1, cluster.inner_steps // parts)
    overrides = [f"method={name}", f"islands.count={cluster.islands}", f"method.inner_steps={steps}"]
    return load_run("quickstart", overrides).config.method


def _share(method: MethodConfig, model: ModelConfig | None, subset: float) -> float:
    blocks = method.mix2.blocks
    if blocks is None:
        return 1.0
    if not 0 < subset <= 1:
        raise ConfigError("--subset is no share", got=subset, allowed="above 0, at most 1")
    return share_of(blocks, model) if model is not None and isinstance(blocks, tuple) else subset


def _step_seconds(
    measured: float | None, flops: float | None, mfu: float, *, gpus: int, parameters: float, tokens: float | None
) -> float:
    """As given, or from 6 FLOPs a parameter and token."""
    if (measured is None) == (flops is None):
        raise ConfigError(
            "the time of an inner step comes from one place",
            allowed="--step-seconds, or --flops with --tokens-per-step",
            fix="--step-seconds 4.72, or --flops 989e12 --mfu 0.4 --gpus 8 --tokens-per-step 65536",
        )
    if flops is None:
        return _positive("--step-seconds", measured)
    if not 0 < mfu <= 1:
        raise ConfigError("--mfu is no share", got=mfu, allowed="above 0, at most 1")
    return 6 * parameters * _positive("--tokens-per-step", tokens) / (_positive("--flops", flops) * gpus * mfu)


def _positive(option: str, value: float | None) -> float:
    if value is None:
        raise ConfigError(f"{option} is missing", fix=f"add {option}")
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{option} must be a number above 0", got=value)
    return value


def _bandwidth(text: str) -> float:
    units = ", ".join(Bandwidth.units)
    try:
        value = Bandwidth.parse(text)
    except ValueError:
        raise ConfigError("--bandwidth is no rate", got=repr(text), allowed=f"a number with a unit: {units}") from None
    if text.strip()[-1:].isdigit():
        raise ConfigError("--bandwidth has no unit", got=repr(text), allowed=f"a number with a unit: {units}")
    if value <= 0:
        raise ConfigError("--bandwidth must be above 0", got=repr(text), fix="100Mbit/s, 10Gbps")
    return float(value)


def _wire(name: str) -> float:
    if name not in WIRE_BYTES:
        raise ConfigError("--wire is no format", got=name, allowed=", ".join(WIRE_BYTES))
    return WIRE_BYTES[name]


def _show(rows: list[PlanRow], cluster: Cluster, *, bandwidth: str, wire: str) -> None:
    console = Console(soft_wrap=True)
    # In a narrower terminal lines are wrapped; a name that is cut short says nothing.
    wide = Console(width=max(console.width, 110))
    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        title=f"{cluster.parameters:.3g} parameters, {cluster.islands} islands, H = {cluster.inner_steps}, steps of "
        f"{cluster.step_seconds:.3g} s, {bandwidth}, {wire}",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for column in ("util.", "round", "sent", "H to hide", "outer state", "days", "ppl"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.method} *" if row.recommended else row.method,
            f"{row.utilization:.1%}",
            f"{row.round_seconds:.0f} s",
            format_bytes(row.bytes_per_round),
            str(row.inner_steps_to_hide or "-"),
            format_bytes(row.outer_state_bytes),
            "-" if row.days is None else f"{row.days:.1f}",
            "-" if row.quality is None else f"{row.quality:.2f}",
        )
    wide.print(table)
    console.print("sent: by an island in a round; H to hide: what travels behind them; outer state: of a rank")
    console.print(f"ppl: {QUALITY_SOURCE}; less is better")
    for row in rows:
        if row.recommended:
            console.print(f"* recommended: {row.method}: {row.reason}", highlight=False)
