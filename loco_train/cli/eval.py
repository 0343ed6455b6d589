"""loco eval: held-out loss of a checkpoint."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from loco_train.cli.checkpoint_progress import progress_bar, verify_with_bar
from loco_train.json_text import json_text

if TYPE_CHECKING:
    from loco_train.checkpoint import Selection
    from loco_train.config.schema import RunConfig


@dataclass(frozen=True)
class Evaluated:
    """Held-out loss (nats a token) of one model: the consensus or an island's."""

    model: str
    loss: float
    perplexity: float


def evaluate(
    checkpoint: Annotated[
        str, typer.Argument(help="A run folder, RUN/islands/I, or a checkpoint folder; @STEP for a step.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Settings to change, as data that moved.")
    ] = None,
    *,
    step: Annotated[int | None, typer.Option(help="The step, instead of the newest.")] = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="Held-out sequences; default: the run's.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Held-out loss of a checkpoint: of the consensus and of each island, in fp32, in one process.

    The data and the held-out sequences are the run's own. A checkpoint holds the islands as they are after the outer
    step, where most methods leave them equal; gossip does not.
    """
    from loco_train.checkpoint import select_checkpoints

    selection = select_checkpoints(checkpoint, step=step)
    verify_with_bar(selection)
    results = _evaluate(selection, _config_of(selection, overrides or []), sequences=sequences, device=device)
    if json:
        print(json_text({"step": selection.step, "models": [asdict(r) for r in results]}, indent=2))
        return
    table = Table(title=f"Held-out loss at step {selection.step}", title_justify="left")
    for name in ("model", "loss", "perplexity"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for result in results:
        table.add_row(result.model, f"{result.loss:.4f}", f"{result.perplexity:.2f}")
    Console().print(table)


def _config_of(selection: Selection, overrides: list[str]) -> RunConfig:
    """The configuration that the checkpoint carries, with changes on top."""
    from loco_train.config.load import load_run

    return load_run(selection.first.folder / "config.yaml", overrides).config


def _evaluate(selection: Selection, config: RunConfig, *, sequences: int | None, device: str) -> list[Evaluated]:
    import torch

    from loco_train.assembly import build_offline_engine
    from loco_train.checkpoint import ConsensusParameters, IslandParameters
    from loco_train.checkpoint.describe import same_parameters
    from loco_train.data.loader import open_heldout

    count = sequences or config.evaluation.sequences
    batches = list(torch.split(open_heldout(config, count).batch(0, sequences=count), 1))
    engine = build_offline_engine(config, device=torch.device(device))
    islands = [IslandParameters(checkpoint) for checkpoint in selection.checkpoints]
    models: dict[str, ConsensusParameters | IslandParameters] = {}
    if len(islands) > 1:
        models["consensus"] = ConsensusParameters(islands)
    models |= {f"island {c.manifest.header.island}": i for c, i in zip(selection.checkpoints, islands, strict=True)}
    results: list[Evaluated] = []
    equal = len(islands) > 1 and all(same_parameters(islands[0], other) for other in islands[1:])
    with progress_bar("evaluating", total=len(models)) as advance:
        for name, parameters in models.items():
            if equal and results:
                # Most methods leave all islands with the same parameters after an outer step.
                results.append(replace(results[0], model=name))
                continue
            engine.views.fill(lambda parameter, _, source=parameters: source.read(parameter))  # type: ignore[misc]
            loss = engine.evaluate(batches)
            results.append(Evaluated(name, loss, math.exp(min(loss, 700.0))))
            advance(1)
    return results
