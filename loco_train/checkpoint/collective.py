"""Work that all ranks of an island do, and that succeeds on all of them or fails on all with the same error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from loco_train.errors import CheckpointError, LocoError

T = TypeVar("T")


@dataclass(frozen=True)
class _Failure:
    """What went wrong on a rank, in a form that another process can print."""

    doing: str
    reason: str
    fix: str | None


def island_rank() -> int:
    """This process in the default group; 0 where there is no group (a tool in one process)."""
    return dist.get_rank() if dist.is_initialized() else 0


def on_every_rank(work: Callable[[], T], *, doing: str) -> list[T]:
    """Call `work` on each rank of the default group; its results by rank, the same list everywhere.

    Without this, a rank that fails leaves the others waiting in their next collective until the group's timeout.

    Args:
        work: local work, which must not call collectives.
        doing: what is being done, for the message: "writing runs/a/…/step-00000120".

    Raises:
        CheckpointError: on all ranks, if it raised on any; names the first such rank and its reason.
    """
    cause: Exception | None = None
    try:
        outcome: T | _Failure = work()
    except Exception as error:
        outcome, cause = _describe(error, doing=doing), error
    outcomes = _gather(outcome)
    failed = [rank for rank, other in enumerate(outcomes) if isinstance(other, _Failure)]
    if failed:
        first = outcomes[failed[0]]
        others = f" (and on {len(failed) - 1} more)" if failed[1:] else ""
        problem = f"{first.doing} failed on rank {failed[0]}{others}: {first.reason}"
        raise CheckpointError(problem, fix=first.fix) from cause
    return outcomes


def _gather(outcome: Any) -> list[Any]:
    if not dist.is_initialized():
        return [outcome]
    outcomes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, outcome)
    return outcomes


def _describe(error: Exception, *, doing: str) -> _Failure:
    if isinstance(error, LocoError):
        labelled = (("got", error.got), ("allowed", error.allowed))
        details = "; ".join(f"{label}: {value}" for label, value in labelled if value is not None)
        return _Failure(doing, f"{error.problem}{f' ({details})' if details else ''}", error.fix)
    reason = f"{type(error).__name__}: {error}"
    refused = isinstance(error, OSError)
    return _Failure(doing, reason, "free space there, or point run_dir to another file system" if refused else None)
