"""loco quickstart: from plain text to a trained, exported and sampled model over islands, on this machine."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loco_train.config.load import ResolvedRun, load_run
from loco_train.config.schema import RunConfig
from loco_train.errors import ConversionError
from loco_train.json_text import json_text
from loco_train.launch.local import launch_local
from loco_train.launch.placement import visible_devices
from loco_train.launch.run_folder import clear_run_folder
from loco_train.telemetry.report import IslandReport, island_report
from loco_train.units import format_bytes

PROMPTS = ("Return the", "import os\n\ndef ", "The following example")
# The trainer evaluates in the run's precision (bf16), transformers in fp32: on the quickstart's model they differ by
# about 1e-3; a wrong conversion differs by tenths.
LOSS_TOLERANCE = 0.01


@dataclass(frozen=True)
class Summary:
    """What a quickstart measured. Losses in nats a token, of the same held-out sequences. bytes_between_islands: read
    at the sockets where the kernel tells, else counted. bytes_data_parallel: what a ring all-reduce of every step's
    gradients between the islands would have sent."""

    heldout_loss_before: float
    heldout_loss_after: float
    heldout_loss_islands: list[float | None]
    heldout_loss_transformers: float
    perplexity_before: float
    perplexity_after: float
    tokens: int
    tokens_per_second: float
    bytes_between_islands: int
    bytes_data_parallel: int
    compute_utilization: float
    islands: int
    rounds: int
    checkpoint: str
    hf_dir: str
    samples: list[dict[str, str]]


def quickstart(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Settings to change.")] = None,
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw an unfinished quickstart away and start over.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a small Llama-style model on two islands on this machine, on the text of the Python standard library.

    Builds tokenizer and data, trains, evaluates, exports to Hugging Face format, checks the export and samples from
    it. An unfinished quickstart goes on; a finished one starts over. Results: runs/quickstart/summary.json.
    """
    console = Console(stderr=json, soft_wrap=True, highlight=False)
    resolved = load_run("quickstart", [*_fitting_gpus(visible_devices(os.environ)), *(overrides or [])])
    config = resolved.config
    run_dir = Path(config.run_dir)
    if fresh or (run_dir / "summary.json").is_file():
        clear_run_folder(run_dir, keep="data")
    build_data(config, console)
    console.print(f"training on {config.islands.count} islands of {config.parallel.ranks} ranks; logs: {run_dir}/logs")
    result = launch_local(resolved)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
    summary = _finish(resolved, console)
    text = json_text(asdict(summary), indent=2)
    (run_dir / "summary.json").write_text(text + "\n", encoding="utf-8")
    if json:
        print(text)
    else:
        _show(summary, run_dir, console)


def _fitting_gpus(devices: list[str]) -> list[str]:
    """As many islands as fit, one rank a GPU; the shipped settings where there is no GPU."""
    if not devices:
        return []
    tensor = 2 if len(devices) >= 4 else 1
    return [f"parallel.tensor={tensor}", f"islands.count={len(devices) // tensor}"]


def build_data(config: RunConfig, console: Console) -> None:
    """Corpus, tokenizer and dataset, unless they are there."""
    from loco_train.data.build import build_dataset
    from loco_train.data.readers import read_documents
    from loco_train.data.standard_library import write_corpus
    from loco_train.data.tokenizer import Tokenizer, train_tokenizer

    prefix, model = Path(config.data.train[0].path), Path(config.data.tokenizer)
    if model.is_file() and Path(f"{prefix}.idx").is_file():
        return
    text = prefix.with_suffix(".jsonl")
    text.parent.mkdir(parents=True, exist_ok=True)
    with console.status("collecting the documentation and sources of the Python standard library"):
        corpus = write_corpus(text)
    with console.status("training the tokenizer"):
        train_tokenizer(read_documents([text]), model, vocab_size=config.model.vocab_size)
    with console.status("tokenizing"):
        card = build_dataset(read_documents([text]), prefix, Tokenizer(model), overwrite=True)
    console.print(
        f"data: {corpus.documents:,} documents, {format_bytes(text.stat().st_size)} of text, {card.tokens:,} tokens"
    )


def _finish(resolved: ResolvedRun, console: Console) -> Summary:
    """Export, check the export against the trainer's own loss, and sample."""
    import torch

    from loco_train.checkpoint import select_checkpoints
    from loco_train.conversion.from_checkpoint import export_selection
    from loco_train.conversion.sampling import SamplingSettings, huggingface_loss, sample
    from loco_train.data.loader import open_heldout

    config = resolved.config
    run_dir = Path(config.run_dir)
    with console.status("exporting to Hugging Face format"):
        selection = select_checkpoints(run_dir)
        exported = export_selection(selection, run_dir / "huggingface", force=True).folder
    with console.status("evaluating and sampling with transformers"):
        sequences = config.evaluation.sequences
        batch = open_heldout(config, sequences).batch(0, sequences=sequences)
        loss = huggingface_loss(exported, torch.split(batch, config.batch.micro))
        samples = sample(exported, PROMPTS, settings=SamplingSettings(new_tokens=48))
    reports = [island_report(run_dir, island) for island in range(config.islands.count)]
    trained = _known(reports[0].consensus_loss_after)
    if abs(loss - trained) > LOSS_TOLERANCE:
        raise ConversionError(
            "transformers finds another held-out loss in the exported folder than the trainer",
            got=f"{loss:.4f} and {trained:.4f}",
            allowed=f"within {LOSS_TOLERANCE}",
            fix="keep the run folder and report this",
        )
    return _summarize(
        config,
        reports,
        transformers_loss=loss,
        checkpoint=str(selection.first.folder),
        hf_dir=str(exported),
        samples=[asdict(continuation) for continuation in samples],
    )


def _summarize(config: RunConfig, reports: list[IslandReport], *, transformers_loss: float, **found: Any) -> Summary:
    before, after = _known(reports[0].consensus_loss_before), _known(reports[0].consensus_loss_after)
    utilizations = [report.compute_utilization or 0.0 for report in reports]
    return Summary(
        heldout_loss_before=before,
        heldout_loss_after=after,
        heldout_loss_islands=[report.island_loss_after for report in reports],
        heldout_loss_transformers=transformers_loss,
        perplexity_before=math.exp(before),
        perplexity_after=math.exp(after),
        tokens=sum(report.tokens for report in reports),
        tokens_per_second=sum(report.tokens_per_second or 0.0 for report in reports),
        bytes_between_islands=sum(report.socket_bytes_sent or report.bytes_sent for report in reports),
        bytes_data_parallel=_bytes_data_parallel(config, steps=reports[0].steps),
        compute_utilization=sum(utilizations) / len(utilizations),
        islands=len(reports),
        rounds=reports[0].rounds,
        **found,
    )


def _bytes_data_parallel(config: RunConfig, *, steps: int) -> int:
    """A ring all-reduce sends 2 (M - 1) P elements in all for M islands; gradients in the accumulation's format."""
    wide = config.precision.parameters == "fp32" or config.precision.accumulation == "fp32"
    elements = 2 * (config.islands.count - 1) * config.model.parameters
    return steps * elements * (4 if wide else 2)


def _known(loss: float | None) -> float:
    assert loss is not None, "a finished run evaluates before its first and after its last round"
    return loss


def _show(summary: Summary, run_dir: Path, console: Console) -> None:
    table = Table(title="Quickstart", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    less = f", {summary.bytes_data_parallel / summary.bytes_between_islands:.0f} times less than data parallel"
    sent = format_bytes(summary.bytes_between_islands) + (less if summary.bytes_between_islands else "")
    islands = ", ".join("-" if loss is None else f"{loss:.4f}" for loss in summary.heldout_loss_islands)
    rows = {
        "held-out loss, before": f"{summary.heldout_loss_before:.4f} (perplexity {summary.perplexity_before:,.1f})",
        "held-out loss, consensus": f"{summary.heldout_loss_after:.4f} (perplexity {summary.perplexity_after:,.1f})",
        "each island before merging": islands,
        "the export in transformers": f"{summary.heldout_loss_transformers:.4f}",
        "tokens": f"{summary.tokens:,} at {summary.tokens_per_second:,.0f} a second",
        "sent between islands": sent,
        "compute utilization": f"{summary.compute_utilization:.0%} of the time in inner steps",
        "checkpoint": summary.checkpoint,
        "Hugging Face folder": summary.hf_dir,
        "all figures": str(run_dir / "summary.json"),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for continuation in summary.samples:
        console.print(Text.assemble((continuation["prompt"], "bold"), continuation["text"]))
        console.rule(style="dim")
