"""Child processes that are ended with their whole group, and that never outlive the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Process id of the program that the launcher started: torchrun, or the only rank itself.
PARENT_VARIABLE = "LOCO_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def end_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent `parent_pid` dies; end at once if it is dead already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that died before the call above sends nothing any more: this process has another parent by now.
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


def die_with_parent() -> None:
    """For a rank, first thing: never outlive torchrun, and so the launcher. Does nothing without a launcher.

    torchrun gives each rank a session of its own, so that signals to its group do not reach them; it ends them when
    it gets SIGTERM, but not when it is killed.
    """
    expected = os.environ.get(PARENT_VARIABLE, "")
    if expected.isdecimal() and int(expected) != os.getpid():
        end_with(int(expected))


@dataclass
class Child:
    """A program in a session of its own, and what became of it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    exit_code: int | None = None

    @classmethod
    def start(cls, command: Sequence[str], *, name: str, variables: Mapping[str, str], log: Path) -> Child:
        """Start `command`, its output appended to `log`; it dies with this process, whatever happens."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            start = output.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "loco_train.launch.child", str(os.getpid()), *command],
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(name, process, log, start)

    def poll(self) -> int | None:
        """The exit code as a shell gives it (128 + number for a signal), or None while it runs."""
        if self.exit_code is None and self._has_ended():
            # Before it is reaped: until then its number can belong to no other group.
            self.send(signal.SIGKILL)
            code = self.process.wait()
            self.exit_code = code if code >= 0 else 128 - code
        return self.exit_code

    def send(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def last_lines(self, count: int) -> list[str]:
        """The end of what it wrote since it was started."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_start, end - 64 * 1024))
            return file.read().decode(errors="replace").splitlines()[-count:]

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, options) is not None


def stop(children: Sequence[Child], *, patience_seconds: float = 10.0) -> None:
    """End all of them: SIGTERM, and after `patience_seconds` SIGKILL. Returns when none is left."""
    for child in children:
        child.send(signal.SIGTERM)
    deadline = time.monotonic() + patience_seconds
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        child.send(signal.SIGKILL)
    while any(child.poll() is None for child in children):
        time.sleep(0.02)
