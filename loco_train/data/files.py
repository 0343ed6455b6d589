"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loco_train.errors import DataError

_CHUNK_BYTES = 8 * 2**20


def temporary_sibling(target: Path) -> Path:
    """A hidden name beside `target`, on the same file system, so that a rename is atomic; not created here."""
    return target.with_name(f".{target.name}.tmp-{secrets.token_hex(4)}")


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes `target`'s name when the block ends without an error.

    Raises:
        DataError: the folder or the file cannot be written (no space, no permission).
    """
    temporary = temporary_sibling(target)
    try:
        with write_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            flush_to_disk(temporary)
            os.replace(temporary, target)
            flush_to_disk(target.parent)
    finally:
        remove_temporary(temporary)


def remove_temporary(path: Path) -> None:
    """Remove what was not renamed; a second failure must not hide the first."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def write_errors(target: Path) -> Iterator[None]:
    """Turns the system's write errors into a DataError about `target`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {target}",
            got=error.strerror or str(error),
            fix="free space or choose another place; nothing was left under that name",
        ) from error


def flush_to_disk(path: Path) -> None:
    """fsync of a file or a folder. A rename is durable only once the folder that holds the name is flushed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_file(path: Path) -> str:
    """sha256 of a file as hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
