"""Pictures into files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loco_train.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure; the format is the file's ending.

    Raises:
        ConfigError: the ending is no picture's, or the file cannot be written.
    """
    try:
        figure.savefig(path)
    except (ValueError, OSError) as error:
        raise ConfigError(f"cannot draw into {path}", got=str(error).splitlines()[0], allowed="png, svg, pdf") from None
