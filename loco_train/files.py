"""What every writer of files needs: a name to write under, and the certainty that it is on disk."""

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


def hash_file(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """sha256 of a file as hexadecimal; `on_bytes` is told the size of each chunk, for progress bars."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()
