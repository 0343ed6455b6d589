"""Pictures into files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loco_train.cli.output_file import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure; the format is the file's ending, which `check_output` has seen.

    Raises:
        ConfigError: the file cannot be written.
    """
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))
