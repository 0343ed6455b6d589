"""Where a run's time goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

PHASES = ("compute", "wait", "outer", "evaluate", "save")


class PhaseClock:
    """Seconds in each phase: compute (inner steps), wait (for other islands), outer, evaluate, save."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(PHASES, 0.0)
        self._taken = dict(self._totals)
        self._begin: float | None = None

    def start(self) -> None:
        """The first inner step begins: wall time counts from here, and phases anew."""
        self._totals = dict.fromkeys(PHASES, 0.0)
        self._taken = dict(self._totals)
        self._begin = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the block to a phase."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._totals[name] += time.perf_counter() - begin

    def take_round(self) -> dict[str, float]:
        """Seconds of each phase since the last call."""
        since = {name: total - self._taken[name] for name, total in self._totals.items()}
        self._taken = dict(self._totals)
        return since

    def total(self, name: str) -> float:
        return self._totals[name]

    @property
    def wall_seconds(self) -> float:
        """Since `start`."""
        return 0.0 if self._begin is None else time.perf_counter() - self._begin

    @property
    def compute_utilization(self) -> float:
        """Time in inner steps over wall time."""
        wall = self.wall_seconds
        return self._totals["compute"] / wall if wall else 0.0
