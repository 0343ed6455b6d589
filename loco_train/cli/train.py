"""loco train: one rank of one island."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer


def train(
    run: Annotated[str, typer.Option("--run", help="A run's YAML file, or the name of one in configs/runs.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[A.B=C]...", help="Settings to change.")] = None,
    run_id: Annotated[
        str, typer.Option("--run-id", help="The same for all islands of a run and at every start; default: its name.")
    ] = "",
) -> None:
    """Train one rank of one island, under torchrun or srun.

    Example, an island of two ranks:  torchrun --nproc-per-node 2 -m -- loco_train.cli.main train --run
    quickstart islands.index=0 islands.rendezvous=host:29400
    """
    from loco_train.launch.processes import die_with_parent

    die_with_parent()
    run_rank(run, overrides or [], run_id=run_id)


def run_rank(run: str, overrides: list[str], *, run_id: str) -> None:
    """Build this rank's trainer and run it; a LocoError is told in the island's events before it ends the rank."""
    import torch.distributed as dist

    from loco_train import assembly
    from loco_train.config.load import load_run
    from loco_train.errors import LocoError
    from loco_train.launch.environment import rank_environment
    from loco_train.launch.run_folder import claim_island_folder
    from loco_train.telemetry.events import RunFailed

    resolved = load_run(run, overrides)
    config = resolved.config
    environment = rank_environment(os.environ, expected_ranks=config.parallel.ranks)
    if environment.rank == 0:
        claim_island_folder(resolved)
    device = assembly.choose_device(config, local_rank=environment.local_rank)
    events = assembly.build_events(config, rank=environment.rank)
    trainer = None
    try:
        assembly.join_default_group(environment, config=config, device=device)
        trainer = assembly.build_trainer(
            config, environment, run_id=run_id or config.name, device=device, events=events
        )
        trainer.run()
    except LocoError as error:
        step, round_ = (trainer.progress.step, trainer.progress.round) if trainer else (0, 0)
        kind = type(error).__name__
        failure = RunFailed(step=step, round=round_, error=kind, message=str(error), exit_code=error.exit_code)
        with contextlib.suppress(LocoError):  # what cannot be written is told by the error itself
            events.emit(failure)
        raise
    finally:
        with contextlib.suppress(OSError):
            events.close()
    dist.destroy_process_group()
