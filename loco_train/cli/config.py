"""loco config: settings looked at before anything runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loco_train.config.load import PARTS, available, load_run
from loco_train.config.save import render
from loco_train.json_text import json_text

app = typer.Typer(no_args_is_help=True, help="Show a run's settings and their origins, or list what is shipped.")


@app.command(epilog="Example: [bold]loco config show quickstart model=llama-150m optimizer.lr=3e-4[/bold]")
def show(
    run: Annotated[str, typer.Argument(help="A run's YAML file, or the name of a shipped run.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change: a.b=value, model=name.")] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: settings, and the origin of each.")] = False,
) -> None:
    """Print a run's settings after all composition, each with its origin; the output is a run file itself."""
    resolved = load_run(run, overrides or [])
    if json:
        document = {"settings": resolved.config.model_dump(mode="json"), "origins": resolved.origins}
        print(json_text(document, indent=2))
    else:
        print(render(resolved), end="")


@app.command("list", epilog="Example: [bold]loco config list[/bold]")
def list_shipped(*, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the shipped runs and the named parts that a run is made of."""
    shipped = {setting: available(folder) for setting, folder in {"run": "runs", **PARTS}.items()}
    if json:
        print(json_text(shipped, indent=2))
        return
    table = Table(box=None, show_header=False)
    for setting, names in shipped.items():
        table.add_row(Text(setting, style="bold"), Text("  ".join(names)))
    Console(soft_wrap=True).print(table)
