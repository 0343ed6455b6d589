"""Files that a command writes at its end: their paths are refused before its work, and they are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loco_train.errors import ConfigError
from loco_train.files import temporary_sibling

PICTURES = (".png", ".svg", ".pdf")


def check_output(option: str, path: Path | None, *, endings: Sequence[str] = ()) -> None:
    """Nothing for no path; endings: those allowed, all where empty.

    Raises:
        ConfigError: another ending, no such folder, a folder or a device in its place, or no right to write there.
    """
    if path is None:
        return
    if endings and path.suffix not in endings:
        allowed = ", ".join(ending.removeprefix(".") for ending in endings)
        raise ConfigError(f"{option} takes a file by its ending", got=str(path), allowed=allowed)
    if not path.parent.is_dir():
        raise ConfigError(f"{option}: there is no folder {path.parent}", got=str(path), fix=f"mkdir -p {path.parent}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} takes a file", got=f"{path}, which is none", fix="give the name of a file")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{option}: no right to write in {path.parent}", got=str(path), fix="name another folder")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write under, which takes the place of `path` at the end; gone where writing failed.

    Raises:
        ConfigError: the file system refused it.
    """
    temporary = temporary_sibling(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}", got=str(error), fix="name another file") from None
    finally:
        temporary.unlink(missing_ok=True)
