"""The benchmarks run by their one command, check values first, and keep rows."""

import csv
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_small_ones_leave_their_rows(tmp_path):
    command = [sys.executable, "kernels/benchmarks", "--elements", "300000", "--repetitions", "2"]
    rows = tmp_path / "rows.csv"
    ended = subprocess.run(
        [*command, "--rows", str(rows)], check=False, cwd=ROOT, capture_output=True, text=True, timeout=170
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    with rows.open() as file:
        found = list(csv.DictReader(file))
    operations = {"memory", "pseudo_gradient", "outer_step", "quantize", "mix", "block_select", "newton_schulz"}
    assert {row["op"] for row in found} == operations
    for operation in operations - {"memory"}:
        variants = {row["variant"] for row in found if row["op"] == operation}
        assert {"ours", "eager"} <= variants
    assert all(0 < float(row["p20"]) <= float(row["p50"]) <= float(row["p80"]) for row in found)
    assert "copy:" in ended.stdout
