import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loco_train.launch.processes import Child, stop

# A program and a child of it, both deaf to SIGTERM; the second's pid is written last.
DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def start(tmp_path: Path, code: str) -> Child:
    return Child.start([sys.executable, "-c", code], name="test", variables=os.environ, log=tmp_path / "a.log")


def wait_until(condition: Callable[[], bool], *, timeout_seconds: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def wait_for_line(child: Child) -> str:
    wait_until(lambda: bool(child.last_lines(1)))
    return child.last_lines(1)[0]


def end(child: Child) -> int:
    wait_until(lambda: child.poll() is not None)
    assert child.exit_code is not None
    return child.exit_code


def test_what_is_deaf_to_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    child = start(tmp_path, DEAF)
    grandchild = int(wait_for_line(child))

    began = time.monotonic()
    stop([child], patience_seconds=0.3)

    assert child.exit_code == 128 + signal.SIGKILL
    assert time.monotonic() - began < 5
    wait_until(lambda: "State:\tZ" in status(grandchild))


def test_children_left_by_a_program_that_ended_are_killed(tmp_path: Path) -> None:
    child = start(tmp_path, "import os, sys, time\nif os.fork() == 0:\n  time.sleep(60)\nsys.exit(5)")

    assert end(child) == 5
    # Its group is empty: whatever was in it is dead or a zombie.
    group = f"NSpgid:\t{child.process.pid}\n"
    wait_until(lambda: not any(group in text and "State:\tZ" not in text for text in all_statuses()))


def test_the_log_is_appended_to_and_read_from_this_start(tmp_path: Path) -> None:
    first = start(tmp_path, "print('one')")
    end(first)
    second = start(tmp_path, "print('two')\nprint('three')")
    end(second)

    assert second.last_lines(15) == ["two", "three"]
    assert second.last_lines(1) == ["three"]
    assert (tmp_path / "a.log").read_text() == "one\ntwo\nthree\n"


def test_a_child_whose_parent_is_gone_already_does_not_start(tmp_path: Path) -> None:
    not_the_parent = 1 if os.getpid() != 1 else 2
    program = [sys.executable, "-m", "loco_train.launch.child", str(not_the_parent), "echo", "started"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, "")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    child = Child.start(["/no/such/program"], name="test", variables=os.environ, log=tmp_path / "a.log")

    assert end(child) == 1
    assert "/no/such/program" in "\n".join(child.last_lines(5))


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "State:\tZ (gone)"


def all_statuses() -> list[str]:
    return [status(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdecimal()]


@pytest.mark.parametrize("code", ["import sys; sys.exit(9)", "import os, signal; os.kill(os.getpid(), 9)"])
def test_exit_codes_are_those_of_a_shell(tmp_path: Path, code: str) -> None:
    assert end(start(tmp_path, code)) == (9 if "exit" in code else 137)
