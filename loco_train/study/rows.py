"""Runs of a study as rows: one line of JSON for each finished run, so that a study that was stopped goes on."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from loco_train.errors import DataError
from loco_train.json_text import json_text


@dataclass(frozen=True)
class Trial:
    """What decides a run: see `settings`. outer_lr, momentum: as they are used, never left to a default."""

    study: str
    variant: str
    method: str
    settings: tuple[str, ...]
    islands: int
    inner_steps: int
    batch: int
    steps: int
    shape: tuple[int, ...]  # layers, hidden, heads, ffn, sequence
    seed: int
    inner_lr: float
    outer_lr: float
    momentum: float


@dataclass(frozen=True)
class Row(Trial):
    """A finished run. Losses in nats, None where it diverged; distances as in `simulation.text.TextResult`."""

    parameters: int
    loss: float | None
    perplexity: float | None
    island_loss: float | None
    l2: float | None
    js: float | None
    l2_max: float | None
    js_max: float | None
    l2_before: float | None
    js_before: float | None
    tokens: int | None
    bytes: int | None
    wall_seconds: float
    commit: str
    torch: str

    @property
    def trial(self) -> Trial:
        return Trial(**{field.name: getattr(self, field.name) for field in fields(Trial)})

    @property
    def comparable_loss(self) -> float:
        """Infinite where the run diverged."""
        return math.inf if self.loss is None else self.loss


def rounded(value: float) -> float:
    """Searched values come from products; rows are found again by what their text says."""
    return float(f"{value:.4g}")


def append_row(path: Path, row: Row) -> None:
    """One write at the end of the file: processes may append side by side, and a kill cuts at most the last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{json_text(asdict(row))}\n".encode())
    finally:
        os.close(descriptor)


def read_rows(path: Path, *, study: str) -> list[Row]:
    """All rows of a file; none where there is no file.

    Raises:
        DataError: a line is no row, or one of another study; with its number.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_row(line, f"{path.name}:{number}", study) for number, line in enumerate(lines, 1)]


def _row(line: str, where: str, study: str) -> Row:
    names = {field.name for field in fields(Row)}
    try:
        data = json.loads(line)
        if set(data) != names:
            raise ValueError(f"fields that differ: {', '.join(sorted(set(data) ^ names))}")
        row = Row(**{**data, "settings": tuple(data["settings"]), "shape": tuple(data["shape"])})
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{where} is no row of a study", got=str(error), fix="remove the line: its run is done again"
        ) from None
    if row.study != study:
        raise DataError(
            f"{where} is a row of another study",
            got=repr(row.study),
            allowed=repr(study),
            fix="give each study a folder of its own: --rows FOLDER",
        )
    return row
