#!/usr/bin/env python3
"""Measures every operation beside its alternatives, prints a table against the floors, and appends its rows.

    python kernels/benchmarks              # on the GPU where there is one, else on the CPU with 1 and 2 threads
    python kernels/benchmarks --elements 1048576 --repetitions 3 --rows /tmp/rows.csv

Needs torch; Triton on a GPU; nothing else. Values are checked before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # the package is found in a checkout that was not installed

import torch  # noqa: E402
from bandwidth import benchmarks as memory_benchmarks  # noqa: E402
from measure import RESULTS, Row, append, measured  # noqa: E402
from products import benchmarks as product_benchmarks  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, help="of a flat buffer (50 million on a CPU, 2**28 on a GPU)")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--rows", type=Path, default=RESULTS, help="the file to append to")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    elements = arguments.elements or (50_000_000 if device == "cpu" else 2**28)
    elements = max(128, elements // 128 * 128)
    for threads in (1, 2) if device == "cpu" else (torch.get_num_threads(),):
        torch.set_num_threads(threads)
        rows = []
        for benchmark in (*memory_benchmarks(device, elements), *product_benchmarks(device)):
            rows += measured(benchmark, device=device, repetitions=arguments.repetitions)
        append(rows, arguments.rows)
        print(table(rows))
    return 0


def table(rows: list[Row]) -> str:
    """Median times, how much of the copy's bandwidth that is, and how many times slower than ours the others are."""
    copied = next(row for row in rows if row.variant == "copy")
    bandwidth = copied.floor / copied.p50
    where = f"{copied.device}, {copied.threads} threads" if copied.threads else copied.device
    lines = [f"\n{where}; copy: {bandwidth / 1e6:.1f} GB/s\n"]
    lines.append(f"{'op':16} {'shape':14} {'variant':44} {'p50 ms':>10} {'of copy':>8} {'ours is':>9}")
    ours = {(row.op, row.shape, row.dtype): row.p50 for row in rows if row.variant == "ours"}
    for row in rows:
        share = f"{row.floor / row.p50 / bandwidth:8.0%}" if row.floor else " " * 8
        own = ours.get((row.op, row.shape, row.dtype))
        times = f"{row.p50 / own:8.2f}x" if own and row.variant != "ours" else ""
        lines.append(f"{row.op:16} {row.shape:14} {row.variant:44} {row.p50:10.3f} {share} {times}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
