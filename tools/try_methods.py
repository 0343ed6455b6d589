#!/usr/bin/env python3
"""Every named method once over real islands on this machine, on the quickstart's text: does it train?

Writes a row for each to docs/results/methods.jsonl. Too short to compare methods by; tools/study.py does that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loco_train.cli.quickstart import build_data
from loco_train.config.load import available, load_run
from loco_train.launch.run_folder import clear_run_folder
from loco_train.telemetry.report import island_report

ISLANDS, ROUNDS, STEPS = 4, 4, 10
FOLDER = Path("runs/methods")
RESULTS = Path(__file__).parent.parent / "docs/results/methods.jsonl"
COMMON = ("parallel.tensor=1", "batch.island=8", "batch.micro=8", f"rounds={ROUNDS}", f"method.inner_steps={STEPS}")


def main() -> int:
    """Exit code: 1 if any method did not train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="named methods; all of configs/methods by default")
    wanted = parser.parse_args().methods or available("methods")
    build_data(load_run("quickstart", []).config, Console())
    rows = [_try(method) for method in wanted]
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    _show(rows)
    return 0 if all(row["trained"] for row in rows) else 1


def _try(method: str) -> dict[str, Any]:
    run_dir = FOLDER / method
    clear_run_folder(run_dir, keep="data")
    # Data parallelism is one island, of as many ranks.
    alone = method == "data-parallel"
    islands = 1 if alone else ISLANDS
    shape = [f"islands.count={islands}", f"parallel.data={ISLANDS if alone else 1}"]
    shape += [f"batch.island={8 * ISLANDS}"] if alone else []
    settings = [*COMMON, *shape, f"method={method}", f"run_dir={run_dir}"]
    command = ["loco", "launch", "local", "--run", "quickstart", *settings]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        return {"method": method, "trained": False, "command": " ".join(command)}
    reports = [island_report(run_dir, island) for island in range(islands)]
    before, after = reports[0].consensus_loss_before, reports[0].consensus_loss_after
    return {
        "method": method,
        "trained": before is not None and after is not None and after < before,
        "heldout_loss_before": before,
        "heldout_loss_after": after,
        "bytes_between_islands": sum(report.bytes_sent for report in reports),
        "wall_seconds": round(seconds, 1),
        "commit": _commit(),
        "date": date.today().isoformat(),
        "command": " ".join(command),
    }


def _commit() -> str:
    command = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"{ISLANDS} islands, {ROUNDS} rounds of {STEPS} steps", title_justify="left")
    for column in ("method", "heldout_loss_before", "heldout_loss_after", "bytes_between_islands", "wall_seconds"):
        table.add_column(column.replace("_", " "), justify="left" if column == "method" else "right")
    for row in rows:
        numbers = [f"{row[name]:.3f}" if name in row else "-" for name in ("heldout_loss_before", "heldout_loss_after")]
        table.add_row(
            row["method"],
            *numbers,
            f"{row.get('bytes_between_islands', 0):,}",
            str(row.get("wall_seconds", "-")),
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
