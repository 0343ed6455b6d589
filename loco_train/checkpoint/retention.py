"""Removing checkpoints: old ones, ones of a future that was given up, and what a killed save left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from loco_train.checkpoint.read import open_checkpoint
from loco_train.checkpoint.steps import committed_steps, list_steps, newest_step, step_name
from loco_train.errors import CheckpointError
from loco_train.files import flush_to_disk

_TEMPORARY = re.compile(r"^\.(?:step-\d{8,}|latest)\.(?:tmp-[0-9a-f]+|removed)$")
_REPLACED = re.compile(r"^\.(step-\d{8,})\.replaced$")


def retain(checkpoints: Path, *, keep_last: int, common_round: int | None = None) -> list[int]:
    """Keep the `keep_last` newest steps up to the pointer; remove the others. For one rank of an island.

    common_round: the newest round that every island is known to have saved. Should one of them die now, all go back to
    that round or a later one, so of each of these the newest step stays too. An island that goes on to save inside its
    round would otherwise throw away the only step from which the run can be resumed. None: one island.

    Steps above the pointer go too: they were saved before the run was taken back to an earlier step, and the newest
    common step of all islands must never be found among them.

    What cannot be removed stays, with a warning in the log: one rank that raised here would leave the others waiting.

    Returns:
        The steps removed. The pointer's target never is.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, got {keep_last}")
    kept = {*committed_steps(checkpoints)[-keep_last:], newest_step(checkpoints)}
    if common_round is not None:
        kept |= _newest_of_rounds(checkpoints, first=common_round)
    doomed = [step for step in list_steps(checkpoints) if step not in kept]
    return [step for step in doomed if _remove(checkpoints / step_name(step))]


def _newest_of_rounds(checkpoints: Path, *, first: int) -> set[int]:
    """The newest step of each round from `first` on, and where that was not saved, from the one before it."""
    newest: dict[int, int] = {}
    for step in committed_steps(checkpoints):
        with contextlib.suppress(CheckpointError):
            newest[open_checkpoint(checkpoints / step_name(step)).manifest.header.round] = step
    start = max((round for round in newest if round <= first), default=first)
    return {step for round, step in newest.items() if round >= start}


def clean_stale(checkpoints: Path) -> list[str]:
    """Remove what a killed save or removal left; for one rank of an island, before the first save of a process.

    A checkpoint that was being replaced by one of the same step comes back where the new one had not arrived.

    Returns:
        Names of what was removed.
    """
    removed = []
    for entry in sorted(checkpoints.iterdir()) if checkpoints.is_dir() else ():
        replaced = _REPLACED.match(entry.name)
        if replaced and not (checkpoints / replaced[1]).exists():
            os.rename(entry, checkpoints / replaced[1])
        elif replaced or _TEMPORARY.match(entry.name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            removed.append(entry.name)
    if checkpoints.is_dir():
        flush_to_disk(checkpoints)
    return removed


@contextlib.contextmanager
def set_aside(target: Path) -> Iterator[None]:
    """Hold an existing `target` under another name while a new one takes its place; put it back if that fails.

    Two renames instead of removing first: killed between them, `clean_stale` finds the old checkpoint.
    """
    if not target.exists():
        yield
        return
    aside = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(target, aside)
    try:
        yield
    except BaseException:
        if not target.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _remove(folder: Path) -> bool:
    # Renamed first: a kill in the middle of the removal must not leave half a checkpoint under a step's name.
    doomed = folder.with_name(f".{folder.name}.removed")
    try:
        if doomed.exists():
            shutil.rmtree(doomed)
        os.rename(folder, doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        logging.getLogger(__name__).warning("cannot remove the checkpoint %s: %s", folder, error)
    return not folder.exists()
