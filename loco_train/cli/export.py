"""loco export: a checkpoint as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loco_train.cli.checkpoint_progress import progress_bar, verify_with_bar
from loco_train.errors import ConfigError
from loco_train.json_text import json_text
from loco_train.units import Bytes, format_bytes


def export(
    checkpoint: Annotated[
        str, typer.Argument(help="A run folder, RUN/islands/I, or a checkpoint folder; @STEP for a step.")
    ],
    output: Annotated[Path, typer.Argument(help="The Hugging Face folder to write.")],
    *,
    step: Annotated[int | None, typer.Option(help="The step, instead of the newest.")] = None,
    island: Annotated[int | None, typer.Option(help="One island of a run, instead of the mean of all.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    max_shard_size: Annotated[str, typer.Option(help="Largest file of weights.")] = "5GB",
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export in OUTPUT.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a checkpoint as a Hugging Face Llama model, with its tokenizer.

    Of a run, the consensus (the mean of the islands' parameters) is written. Load it with
    AutoModelForCausalLM.from_pretrained(OUTPUT) and AutoTokenizer.from_pretrained(OUTPUT).
    """
    from loco_train.checkpoint import select_checkpoints
    from loco_train.conversion.from_checkpoint import export_selection, model_of
    from loco_train.conversion.weight_map import weights_of

    max_shard_bytes = _parse_size(max_shard_size)
    selection = select_checkpoints(checkpoint, step=step, island=island)
    verify_with_bar(selection)
    with progress_bar("exporting", total=len(weights_of(model_of(selection.first)))) as advance:
        written = export_selection(
            selection,
            output,
            dtype=dtype,
            max_shard_bytes=max_shard_bytes,
            force=force,
            on_parameter=lambda _: advance(1),
        )
    if json:
        document = {**asdict(written), "folder": str(written.folder), "step": selection.step, "dtype": dtype}
        print(json_text(document, indent=2))
        return
    source = "the consensus" if len(selection.checkpoints) > 1 else f"island {selection.first.manifest.header.island}"
    size = f"{written.parameters:,} parameters in {dtype}, {format_bytes(written.bytes)}"
    Console(soft_wrap=True).print(
        f"{written.folder}: {source} at step {selection.step}, {size}", highlight=False, markup=False
    )


def _parse_size(text: str) -> int:
    try:
        return int(Bytes.parse(text))
    except ValueError as error:
        raise ConfigError("--max-shard-size is no size", got=repr(text), allowed="such as 5GB or 500MiB") from error
