"""loco inspect: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loco_train.cli.checkpoint_progress import progress_bar, verify_with_bar
from loco_train.json_text import json_text
from loco_train.units import format_bytes

if TYPE_CHECKING:
    from loco_train.checkpoint import Selection
    from loco_train.checkpoint.describe import ParameterSummary
    from loco_train.checkpoint.manifest import FileRecord


def inspect(
    checkpoint: Annotated[
        str, typer.Argument(help="A run folder, RUN/islands/I, or a checkpoint folder; @STEP for a step.")
    ],
    *,
    step: Annotated[int | None, typer.Option(help="The step, instead of the newest.")] = None,
    island: Annotated[int | None, typer.Option(help="One island of a run, instead of all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a checkpoint holds: where the run stood, its settings, and each parameter's shape, norm and digest.

    All files are compared with their hashes first. Of a run, the parameters are the consensus, and "apart" is how far
    the islands are from it; digests that are equal mean parameters that are equal to the last bit.
    """
    from loco_train.checkpoint import IslandParameters, select_checkpoints
    from loco_train.checkpoint.describe import summarize_parameters
    from loco_train.checkpoint.steps import pointer_problem

    selection = select_checkpoints(checkpoint, step=step, island=island)
    warnings = list(filter(None, (pointer_problem(one.folder.parent) for one in selection.checkpoints)))
    verify_with_bar(selection)
    islands = [IslandParameters(one) for one in selection.checkpoints]
    with progress_bar("reading", total=len(islands[0].shapes)) as advance:
        parameters = summarize_parameters(islands, on_parameter=lambda _: advance(1))
    if json:
        print(json_text({**_document(selection, parameters), "warnings": warnings}, indent=2))
    else:
        _show(Console(), selection, parameters)
        for warning in warnings:
            Console(stderr=True, soft_wrap=True).print(Text(f"warning: {warning}", style="yellow"))


def _document(selection: Selection, parameters: list[ParameterSummary]) -> dict[str, Any]:
    header = selection.first.manifest.header
    return {
        **{key: value for key, value in asdict(header).items() if key != "island"},
        "selected_islands": [c.manifest.header.island for c in selection.checkpoints],
        "size_bytes": selection.size_bytes,
        "checkpoints": [
            {"folder": str(c.folder), "files": [_file_document(record) for record in c.manifest.files]}
            for c in selection.checkpoints
        ],
        "parameters": [asdict(parameter) for parameter in parameters],
    }


def _file_document(record: FileRecord) -> dict[str, Any]:
    return {"file": record.file, "bytes": record.bytes, "sha256": record.sha256}


def _show(console: Console, selection: Selection, parameters: list[ParameterSummary]) -> None:
    header = selection.first.manifest.header
    files = sum(len(c.manifest.files) for c in selection.checkpoints)
    islands = ", ".join(str(c.manifest.header.island) for c in selection.checkpoints)
    facts = {
        "run": f"{header.run_name} ({header.run_id})",
        "step": f"{header.step:,}",
        "round": f"{header.round:,}" + (f" and {header.steps_into_round} steps" if header.steps_into_round else ""),
        "tokens": f"{header.tokens:,}",
        "islands": f"{islands} of {header.islands}",
        "layout": f"tensor {header.tensor} x pipeline {header.pipeline} x data {header.data}",
        "size": f"{format_bytes(selection.size_bytes)} in {files} files",
    }
    table = Table(title="Checkpoint", show_header=False, title_justify="left")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    for section, text in _sections(header.config):
        table.add_row(Text(section, style="dim"), Text(text))
    console.print(table)
    console.print(_parameter_table(parameters, several=len(selection.checkpoints) > 1))


def _sections(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The configuration, one line a section: `model: layers=2 hidden_size=64 …`; settings at their None left out."""
    from loco_train.config.compare import flatten

    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    sections = {"settings": plain, **{key: value for key, value in config.items() if isinstance(value, Mapping)}}
    return [
        (name, " ".join(f"{key}={value}" for key, value in flatten(values).items() if value is not None))
        for name, values in sections.items()
        if values
    ]


def _parameter_table(parameters: list[ParameterSummary], *, several: bool) -> Table:
    table = Table(title="Parameters" + (" (consensus)" if several else ""), title_justify="left")
    table.add_column("name", overflow="fold")
    for name in ("shape", "norm", *(("apart",) if several else ()), "digest"):
        table.add_column(name, justify="right", no_wrap=True)
    for p in parameters:
        apart = (f"{p.distance:.3g}",) if several else ()
        table.add_row(p.name, " x ".join(map(str, p.shape)), f"{p.norm:.5g}", *apart, p.digest)
    return table
