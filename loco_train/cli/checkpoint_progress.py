"""Progress bars of the commands that read checkpoints; on the error stream, so that --json stays clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from loco_train.checkpoint import Selection


@contextmanager
def progress_bar(title: str, *, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the error stream, gone when done; the value is told how much was just done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda amount: progress.advance(task, amount)


def verify_with_bar(selection: Selection) -> None:
    """`Selection.verify` with a bar."""
    with progress_bar("verifying", total=selection.size_bytes) as advance:
        selection.verify(on_bytes=advance)
