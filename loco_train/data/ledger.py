"""The ledger of a run: which samples each island consumed, one JSON line per entry, on disk before training goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from loco_train.data.files import write_errors, written_whole
from loco_train.errors import DataError


@dataclass(frozen=True)
class Entry:
    """Samples [first, stop) consumed by `island` in `round`."""

    round: int
    island: int
    first: int
    stop: int


@dataclass(frozen=True)
class Range:
    """Ordinals [first, stop)."""

    first: int
    stop: int

    def __str__(self) -> str:
        return f"{self.first}..{self.stop - 1}"


@dataclass(frozen=True)
class Coverage:
    """What all islands together consumed: `consumed` runs from 0 to the highest ordinal, except for `gaps`.

    `repeats` were consumed more than once; a range consumed three times stands there twice.
    """

    consumed: Range
    gaps: tuple[Range, ...]
    repeats: tuple[Range, ...]

    @property
    def exact(self) -> bool:
        """Each sample exactly once."""
        return not self.gaps and not self.repeats


class Ledger:
    """An island's ledger file; created at the first entry. One process writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self, round: int, island: int, first: int, stop: int) -> None:
        """Append that `island` consumes samples [first, stop) in `round`; returns once it is on disk.

        Raises:
            DataError: the file cannot be written.
        """
        line = json.dumps(asdict(Entry(round, island, first, stop))) + "\n"
        with write_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[Entry]:
        """All entries, oldest first. A last line that a kill cut off is left out.

        Raises:
            DataError: a damaged line elsewhere.
        """
        return list(_read(self.path))

    def truncate_to(self, *, round: int, stop: int) -> None:
        """Forget what came after a checkpoint: keep earlier rounds and, of `round`, samples below `stop`.

        Args:
            round: the round that the checkpoint is in.
            stop: the island's next ordinal in that round (its first one where the round has not begun).

        Raises:
            DataError: the file is damaged or cannot be written.
        """
        kept = [e for e in self.entries() if e.round < round]
        current = [e for e in self.entries() if e.round == round and e.first < stop]
        kept += [Entry(e.round, e.island, e.first, min(e.stop, stop)) for e in current]
        if not self.path.exists():
            return
        with written_whole(self.path) as temporary:
            temporary.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in kept))


def coverage(paths: Iterable[Path]) -> Coverage:
    """Gaps and repeats over the ledgers of all islands of a run.

    Raises:
        DataError: a ledger is damaged.
    """
    ranges = sorted((e.first, e.stop) for path in paths for e in _read(path) if e.stop > e.first)
    gaps: list[Range] = []
    repeats: list[Range] = []
    reached = 0
    for first, stop in ranges:
        if first > reached:
            gaps.append(Range(reached, first))
        elif first < reached:
            repeats.append(Range(first, min(stop, reached)))
        reached = max(reached, stop)
    return Coverage(Range(0, reached), tuple(gaps), _joined(repeats))


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Neighbours that touch, as one: a repeated round is one finding, not one a step."""
    joined: list[Range] = []
    for item in ranges:
        if joined and joined[-1].stop == item.first:
            joined[-1] = Range(joined[-1].first, item.stop)
        else:
            joined.append(item)
    return tuple(joined)


def _read(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    *whole, _torn = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(whole, start=1):
        try:
            yield Entry(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}, line {number} is damaged", got=line[:80], fix="restore the ledger") from error
