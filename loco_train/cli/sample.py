"""loco sample: text that a model continues."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from loco_train.cli.checkpoint_progress import verify_with_bar
from loco_train.json_text import json_text


def sample(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face folder, or what loco export takes: a run, an island, a checkpoint.")
    ],
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue; none: begin a document.")] = None,
    *,
    new_tokens: Annotated[int, typer.Option(min=1, help="At most this many tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: the likeliest token each time.")] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of probability to draw from.")] = 0.95,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    step: Annotated[int | None, typer.Option(help="The step of a checkpoint, instead of the newest.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Continue texts by a trained model, through transformers.

    A checkpoint is exported to a temporary folder first (fp32), so that what is sampled is what an export would give.
    """
    from loco_train.conversion.sampling import SamplingSettings
    from loco_train.conversion.sampling import sample as continue_prompts

    settings = SamplingSettings(new_tokens=new_tokens, temperature=temperature, top_p=top_p, seed=seed)
    with _huggingface_folder(model, step=step) as folder:
        continuations = continue_prompts(folder, prompts or [""], settings=settings, device=device)
    if json:
        print(json_text({"settings": asdict(settings), "samples": [asdict(c) for c in continuations]}, indent=2))
        return
    console = Console()
    for continuation in continuations:
        console.print(Text.assemble((continuation.prompt, "bold"), continuation.text))
        console.rule(style="dim")


@contextmanager
def _huggingface_folder(name: str, *, step: int | None) -> Iterator[Path]:
    if (Path(name) / "config.json").is_file():
        yield Path(name)
        return
    from loco_train.checkpoint import select_checkpoints
    from loco_train.conversion.from_checkpoint import export_selection

    selection = select_checkpoints(name, step=step)
    verify_with_bar(selection)
    with tempfile.TemporaryDirectory(prefix="loco-sample-") as temporary:
        yield export_selection(selection, Path(temporary) / "model", dtype="float32").folder
