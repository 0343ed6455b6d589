"""Becomes another program that dies with its parent: python -m loco_train.launch.child PARENT_PID PROGRAM [ARGUMENT]...

A program of its own, because code between fork and exec (preexec_fn) can deadlock in a launcher that has threads.
"""

from __future__ import annotations

import os
import sys

from loco_train.launch.processes import PARENT_VARIABLE, end_with


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    end_with(int(parent_pid))
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
