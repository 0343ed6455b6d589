"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loco_train.errors import DataError
from loco_train.files import flush_to_disk, temporary_sibling


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
