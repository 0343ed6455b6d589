"""Opening checkpoints: nothing is used before it is shown to be whole, and nothing damaged is passed over silently."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from loco_train.checkpoint.manifest import FileRecord, Manifest
from loco_train.checkpoint.steps import MANIFEST, POINTER, committed_steps, newest_step, parse_step_name, step_name
from loco_train.errors import CheckpointError
from loco_train.files import hash_file


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of one island whose manifest was read and whose files are there in full size."""

    folder: Path
    manifest: Manifest

    @property
    def size_bytes(self) -> int:
        return sum(record.bytes for record in self.manifest.files)

    def path(self, record: FileRecord) -> Path:
        return self.folder / record.file

    def verify(
        self, records: Iterable[FileRecord] | None = None, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Compare files (all, or `records`) with their hashes; CheckpointError names the first that differs."""
        for record in self.manifest.files if records is None else records:
            got = hash_file(self.path(record), on_bytes=on_bytes)
            if got != record.sha256:
                raise CheckpointError(
                    f"{self.path(record)} is damaged or belongs to another checkpoint",
                    got=f"sha256 {got}",
                    allowed=f"sha256 {record.sha256}, as the manifest says",
                )

    def attachment(self, name: str) -> bytes:
        """Content of an attached file (tokenizer.model, config.yaml), verified."""
        record = next((r for r in self.manifest.attachments if r.file == name), None)
        if record is None:
            raise CheckpointError(f"{self.folder} holds no {name}")
        self.verify([record])
        return self.path(record).read_bytes()


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint folder: its manifest, and presence and size of each file (hashes: `Checkpoint.verify`).

    Raises:
        CheckpointError: no manifest, another format version, a missing, cut or surplus file, or a folder that bears
            another step's name.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    checkpoint = Checkpoint(folder, Manifest.from_text(text, where=path))
    _check_step(checkpoint)
    _check_files(checkpoint)
    return checkpoint


def open_step(checkpoints: Path, *, step: int | None = None) -> Checkpoint | None:
    """Open the newest checkpoint of an island, or the one of `step`.

    Returns:
        None only where the island has no checkpoint at all and no step was asked for.

    Raises:
        CheckpointError: the checkpoint is missing or not whole. The message names the newest older whole one and how
            to choose it; it is never taken by itself, because that would silently undo training.
    """
    wanted = newest_step(checkpoints) if step is None else step
    if wanted is None:
        return None
    try:
        return open_existing(checkpoints, wanted)
    except CheckpointError as error:
        fix = older_choice(checkpoints, before=wanted)
        raise CheckpointError(error.problem, got=error.got, allowed=error.allowed, fix=fix) from error


def older_choice(checkpoints: Path, *, before: int) -> str:
    """What to do about a damaged checkpoint: the newest whole one before it, found by verifying all hashes."""
    older = newest_whole(checkpoints, before=before)
    if older is None:
        return (
            f"there is no older whole checkpoint in {checkpoints}: choose a later step, restore the files, or start "
            "with a new run_dir"
        )
    return (
        f"the newest whole one before it is step {older}: choose it with --step {older} (or PATH@{older}) to read it; "
        f"to train on from it, write {step_name(older)} into {checkpoints / POINTER}, and the like on the other islands"
    )


def newest_whole(checkpoints: Path, *, before: int) -> int | None:
    """The highest step below `before` all of whose files match their hashes; None where there is none."""
    for step in reversed(committed_steps(checkpoints)):
        if step < before:
            try:
                open_checkpoint(checkpoints / step_name(step)).verify()
            except CheckpointError:
                continue
            return step
    return None


def open_existing(checkpoints: Path, step: int) -> Checkpoint:
    """Open the checkpoint of `step`; CheckpointError without advice."""
    folder = checkpoints / step_name(step)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} does not exist", allowed=", ".join(map(str, committed_steps(checkpoints))) or "no step at all"
        )
    return open_checkpoint(folder)


def _check_step(checkpoint: Checkpoint) -> None:
    named = parse_step_name(checkpoint.folder.name)
    if named is not None and named != checkpoint.manifest.header.step:
        raise CheckpointError(
            f"{checkpoint.folder} holds the checkpoint of another step",
            got=checkpoint.manifest.header.step,
            allowed=named,
        )


def _check_files(checkpoint: Checkpoint) -> None:
    for record in checkpoint.manifest.files:
        path = checkpoint.path(record)
        if not path.is_file():
            raise CheckpointError(f"{path} is missing", allowed=f"a file of {record.bytes} bytes, as the manifest says")
        if path.stat().st_size != record.bytes:
            raise CheckpointError(
                f"{path} has the wrong size",
                got=f"{path.stat().st_size} bytes",
                allowed=f"{record.bytes} bytes, as the manifest says",
            )
    known = {record.file for record in checkpoint.manifest.ranks}
    for path in sorted(checkpoint.folder.glob("rank-*.safetensors")):
        if path.name not in known:
            raise CheckpointError(f"{path} is foreign: the manifest does not name it", allowed=", ".join(sorted(known)))
