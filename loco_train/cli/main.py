"""The program `loco`. A command's module is imported when that command is used, so that `loco --help` is quick."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from loco_train import __version__
from loco_train.errors import LocoError


@dataclass(frozen=True)
class LazyCommand:
    """Where a command lies (module:attribute, a function or a Typer app), its line in `loco --help`, and an example."""

    target: str
    help: str
    example: str

    def load(self, name: str) -> Any:
        """The command itself; imports its module."""
        module, attribute = self.target.split(":")
        loaded = getattr(import_module(module), attribute)
        if isinstance(loaded, typer.Typer):
            command = typer.main.get_command(loaded)
        else:
            single = typer.Typer(add_completion=False)
            single.command(name)(loaded)
            command = typer.main.get_command(single)
        command.name = name
        command.epilog = f"Example: [bold]{self.example}[/bold]"
        return command


COMMANDS = {
    "quickstart": LazyCommand(
        "loco_train.cli.quickstart:quickstart",
        "Train a small model on two islands on this machine, from text to a Hugging Face folder.",
        "loco quickstart",
    ),
    "data": LazyCommand(
        "loco_train.cli.data:app",
        "Train a tokenizer, and turn text into token files.",
        "loco data build text.jsonl --output data/train --tokenizer data/tokenizer.model",
    ),
    "config": LazyCommand(
        "loco_train.cli.config:app",
        "Show a run's settings and their origins, or list what is shipped.",
        "loco config show quickstart optimizer.lr=3e-4",
    ),
    "launch": LazyCommand(
        "loco_train.cli.launch:app",
        "Start all islands of a run and watch them.",
        "loco launch local --run quickstart",
    ),
    "simulate": LazyCommand(
        "loco_train.cli.simulate:simulate",
        "Run a method over many islands in one process.",
        "loco simulate --method gasloc-2peer --islands 8 --rounds 12",
    ),
    "topology": LazyCommand(
        "loco_train.cli.topology:topology",
        "Show who exchanges with whom under a method, and how fast it brings islands together.",
        "loco topology --method gasloc-2peer --islands 16",
    ),
    "pace": LazyCommand(
        "loco_train.cli.pace:pace",
        "Choose how many inner steps each island does, so that nobody waits for the slowest.",
        "loco pace --step-seconds 1,1,1,2.5 --exchange-seconds 4",
    ),
    "plan": LazyCommand(
        "loco_train.cli.plan:plan_command",
        "Tell what every method would cost on a cluster: utilization, time, bytes, memory; and which to take.",
        "loco plan --params 1.5e9 --islands 8 --inner-steps 100 --step-seconds 4.72 --bandwidth 100Mbps",
    ),
    "rendezvous": LazyCommand(
        "loco_train.cli.rendezvous:rendezvous",
        "Serve the store where islands on several machines meet.",
        "loco rendezvous --port 29400",
    ),
    "train": LazyCommand(
        "loco_train.cli.train:train",
        "Run one rank of one island; torchrun or srun starts it.",
        "torchrun --nproc-per-node 8 -m -- loco_train.cli.main train --run run.yaml islands.index=0 "
        "islands.rendezvous=node1:29400",
    ),
    "eval": LazyCommand(
        "loco_train.cli.eval:evaluate",
        "Held-out loss of a checkpoint.",
        "loco eval runs/quickstart",
    ),
    "inspect": LazyCommand(
        "loco_train.cli.inspect:inspect",
        "Show what a checkpoint holds.",
        "loco inspect runs/quickstart",
    ),
    "export": LazyCommand(
        "loco_train.cli.export:export",
        "Write a checkpoint as a Hugging Face model.",
        "loco export runs/quickstart exported/quickstart",
    ),
    "sample": LazyCommand(
        "loco_train.cli.sample:sample",
        "Continue texts by a trained model.",
        "loco sample runs/quickstart 'def read(' --new-tokens 40",
    ),
}


class LazyGroup(TyperGroup):
    """Lists `COMMANDS` from their table; imports one when it is invoked, or when its own help is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands.update({name: TyperCommand(name, help=lazy.help) for name, lazy in COMMANDS.items()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, COMMANDS[name].load(name) if name in COMMANDS else command, rest


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with [bold]loco quickstart[/bold]; [bold]loco COMMAND --help[/bold] explains a command.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"loco-train {__version__}")
        raise typer.Exit


@app.callback()
def loco(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Pretrain language models over islands of compute that are joined by slow links."""


def main() -> None:
    """The entry point: errors made for the user become a message and their exit code; bugs keep their traceback."""
    try:
        app(prog_name="loco")
    except LocoError as error:
        show_error(error.message())
        sys.exit(error.exit_code)


def show_error(message: str) -> None:
    """A message in red on the error stream; lines are not wrapped, so that paths can be copied."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(message, style="red"))


if __name__ == "__main__":
    main()
