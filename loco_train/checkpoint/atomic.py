"""Files and folders that are either whole or not there: write beside, flush to disk, rename, flush the parent."""

from __future__ import annotations

import os
from pathlib import Path

from loco_train.files import flush_to_disk, temporary_sibling


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
