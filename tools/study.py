#!/usr/bin/env python3
"""The study of methods: `tune` finds each method's values, `run` does the final points, `table` writes what they say.

Every finished run is a row in docs/results. What is there is not done again, so a command that was stopped goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loco_train.errors import LocoError
from loco_train.study.report import write_table
from loco_train.study.settings import load_study
from loco_train.study.trials import code_commit
from loco_train.study.work import Place, run, tune

_RESULTS = Path(__file__).resolve().parents[1] / "docs/results"


def main(arguments: list[str] | None = None) -> int:
    """Exit code; errors for the user go to the error stream."""
    options = _parser().parse_args(arguments)
    try:
        place = Place(load_study(options.study), options.rows, code_commit(), options.processes)
        if options.command == "tune":
            tune(place, parts=options.parts, told=_told)
        elif options.command == "run":
            run(place, parts=options.parts, told=_told)
        else:
            _told(f"written: {', '.join(map(str, write_table(place)))}")
    except LocoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _told(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tune", "run", "table"))
    parser.add_argument("--study", default="methods", help="a YAML file, or a name in configs/studies")
    parser.add_argument("--rows", type=Path, default=_RESULTS, help="folder of the rows (default: docs/results)")
    parser.add_argument("--parts", nargs="+", default=[], help="only these parts of the study")
    parser.add_argument("--processes", type=int, default=2, help="runs side by side, one core each; 0: in this process")
    return parser


if __name__ == "__main__":
    sys.exit(main())
