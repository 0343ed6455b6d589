"""loco data: tokenizer training and text to token files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from loco_train.cli.checkpoint_progress import progress_bar
from loco_train.errors import DataError
from loco_train.json_text import json_text

app = typer.Typer(no_args_is_help=True, help="Train a tokenizer, and turn text into token files.")

Inputs = Annotated[
    list[Path], typer.Argument(help="Text: .txt (a file is a document), .jsonl (both also .gz, .zst), .parquet.")
]
Key = Annotated[str, typer.Option("--key", help="The field (jsonl) or column (parquet) that holds the text.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def tokenizer(
    inputs: Inputs,
    *,
    output: Annotated[Path, typer.Option(help="The model file to write, e.g. tokenizer.model.")],
    vocab_size: Annotated[int, typer.Option(min=1, help="Number of ids, 4 special ones and 256 bytes included.")],
    key: Key = "text",
    character_coverage: Annotated[
        float, typer.Option(min=0.9, max=1.0, help="Share of the text whose characters get ids; the rest uses bytes.")
    ] = 0.9995,
    max_mebibytes: Annotated[int, typer.Option(min=1, help="Train on at most this much text, from the start.")] = 256,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a tokenizer of that name.")] = False,
    json: Json = False,
) -> None:
    """Train a sentencepiece byte-pair encoding that gives every text back exactly."""
    from loco_train.data.readers import read_documents
    from loco_train.data.tokenizer import train_tokenizer

    if output.exists() and not overwrite:
        raise DataError(
            f"there is a tokenizer {output} already",
            got="datasets built with it would fit no tokenizer any more",
            fix="choose another --output, or replace it with --overwrite",
        )
    with progress_bar("reading, then training", total=_size_bytes(inputs)) as advance:
        trained = train_tokenizer(
            read_documents(inputs, text_key=key, on_bytes=advance),
            output,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            max_bytes=max_mebibytes * 2**20,
        )
    _print({"tokenizer": str(output), "vocab_size": trained.vocab_size, "sha256": trained.sha256}, json=json)


@app.command()
def build(
    inputs: Inputs,
    *,
    output: Annotated[Path, typer.Option(help="PREFIX of the files: PREFIX.bin, PREFIX.idx, PREFIX.loco.json.")],
    tokenizer: Annotated[Path, typer.Option(help="A sentencepiece model file.")],
    key: Key = "text",
    append_eos: Annotated[bool, typer.Option(help="End each document with the end-of-text token.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the tokenizer; default: one a core.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a dataset of that name.")] = False,
    json: Json = False,
) -> None:
    """Tokenize text into a Megatron indexed dataset, whole or not at all."""
    from loco_train.data.build import build_dataset
    from loco_train.data.readers import read_documents
    from loco_train.data.tokenizer import Tokenizer

    with progress_bar("tokenizing", total=_size_bytes(inputs)) as advance:
        card = build_dataset(
            read_documents(inputs, text_key=key, on_bytes=advance),
            output,
            Tokenizer(tokenizer),
            append_eos=append_eos,
            overwrite=overwrite,
            threads=threads,
        )
    shown = {"documents": card.documents, "tokens": card.tokens, "bytes": card.bin_bytes, "sha256": card.bin_sha256}
    _print({"dataset": str(output), **shown, "vocab_size": card.vocab_size}, json=json)


@app.command()
def standard_library(
    output: Annotated[Path, typer.Argument(help="The jsonl file to write.")], *, json: Json = False
) -> None:
    """Write the documentation and sources of this Python's standard library as a small corpus."""
    from loco_train.data.standard_library import write_corpus

    with _documents_counted("collecting documents") as count:
        report = write_corpus(output, on_document=count)
    _print({"corpus": str(output), "documents": report.documents, "characters": report.characters}, json=json)


def _size_bytes(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


@contextmanager
def _documents_counted(title: str) -> Iterator[Callable[[int], None]]:
    """A running count on the error stream, for work whose end is not known."""
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda count: progress.update(task, completed=count)


def _print(result: dict[str, object], *, json: bool) -> None:
    if json:
        print(json_text(result, indent=2))
        return
    table = Table(show_header=False, box=None)
    for name, value in result.items():
        table.add_row(name.replace("_", " "), Text(f"{value:,}" if isinstance(value, int) else str(value)))
    Console().print(table)
