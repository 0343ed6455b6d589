"""Files and folders that are either whole or not there: write beside, flush to disk, rename, flush the parent."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 8 * 2**20


def temporary_sibling(target: Path) -> Path:
    """A hidden name beside `target`, on the same file system, so that a rename is atomic; not created here."""
    return target.with_name(f".{target.name}.tmp-{secrets.token_hex(4)}")


def flush_to_disk(path: Path) -> None:
    """fsync of a file or a folder. A rename is durable only once the folder that holds the name is flushed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write and flush a file inside a folder that nobody reads yet."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step: a reader sees the old content or the new, never a part."""
    temporary = temporary_sibling(path)
    try:
        write_file(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_to_disk(path.parent)


def hash_file(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """sha256 of a file as hexadecimal; `on_bytes` is told the size of each chunk, for progress bars."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()
