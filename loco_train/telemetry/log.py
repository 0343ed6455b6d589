"""Where events go in, and out to every sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loco_train.errors import EnvironmentProblem
from loco_train.telemetry.events import Event


class Sink(Protocol):
    """Takes events as they happen."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


class EventLog:
    """Passes each event to every sink."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        """Pass it on.

        Raises:
            EnvironmentProblem: an event cannot be written.
        """
        try:
            for sink in self._sinks:
                sink.write(event)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {type(event).__name__} to the run's folder",
                got=error.strerror or str(error),
                fix="free space there, or point run_dir to a larger file system; then start the run again: it resumes",
            ) from error

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
