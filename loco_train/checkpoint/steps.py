"""The checkpoints of one island as a folder of steps with a pointer to the newest.

The pointer `latest` is written last and decides. A step folder above it was never finished or belongs to a future
that was given up by resuming from an earlier step; it is not offered.
"""

from __future__ import annotations

import re
from pathlib import Path

from loco_train.checkpoint.atomic import replace_file
from loco_train.errors import CheckpointError

MANIFEST = "manifest.json"
POINTER = "latest"
_STEP = re.compile(r"^step-(\d{8,})$")


def step_name(step: int) -> str:
    """Folder name of a step; eight digits, so that names sort as numbers do."""
    return f"step-{step:08d}"


def parse_step_name(name: str) -> int | None:
    match = _STEP.match(name)
    return int(match[1]) if match else None


def island_checkpoints(run_dir: Path, island: int) -> Path:
    """Folder that holds the checkpoints of an island."""
    return run_dir / "islands" / str(island) / "checkpoints"


def list_steps(checkpoints: Path) -> tuple[int, ...]:
    """Steps that have a folder, ascending, whatever the pointer says; empty where there is no folder at all."""
    if not checkpoints.is_dir():
        return ()
    found = (parse_step_name(entry.name) for entry in checkpoints.iterdir() if entry.is_dir())
    return tuple(sorted(step for step in found if step is not None))


def newest_step(checkpoints: Path) -> int | None:
    """The step that the pointer names; None where nothing was ever saved.

    Without a pointer it is the highest step: a save that was killed just before its first pointer, or a pointer that
    was lost, must not look like a fresh start.

    Raises:
        CheckpointError: the pointer is unreadable.
    """
    pointer = checkpoints / POINTER
    if not pointer.exists():
        steps = list_steps(checkpoints)
        return steps[-1] if steps else None
    text = pointer.read_bytes().decode(errors="replace").strip()
    step = parse_step_name(text)
    if step is None:
        there = ", ".join(map(str, list_steps(checkpoints))) or "none"
        raise CheckpointError(
            f"{pointer} is damaged",
            got=repr(text[:80]),
            allowed="the name of a step folder, such as step-00000120",
            fix=f"name a step yourself (--step, or PATH@STEP); there are: {there}",
        )
    return step


def committed_steps(checkpoints: Path) -> tuple[int, ...]:
    """Steps to choose from: those up to the pointer, ascending."""
    newest = newest_step(checkpoints)
    return tuple(step for step in list_steps(checkpoints) if newest is not None and step <= newest)


def point_to(checkpoints: Path, step: int) -> None:
    """Make `step` the newest. Steps above it are from now on a future that was given up."""
    replace_file(checkpoints / POINTER, f"{step_name(step)}\n".encode())


def pointer_problem(checkpoints: Path) -> str | None:
    """What is wrong with the pointer to the newest step, for a person to look at; None where all is well."""
    pointer, steps = checkpoints / POINTER, list_steps(checkpoints)
    if not pointer.exists():
        return f"{pointer} is not there: the highest step is taken for the newest" if steps else None
    newest = newest_step(checkpoints)
    if newest in steps:
        return None
    return f"{pointer} names step {newest}, which is not there; steps that are: {', '.join(map(str, steps)) or 'none'}"
