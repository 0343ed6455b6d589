"""Interleaved timing of alternatives, and the rows that are kept of it."""

from __future__ import annotations

import csv
import datetime
import importlib.util
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

RESULTS = Path(__file__).with_name("results.csv")
FOLDER = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """p20, p50, p80: quantiles over the repetitions, in `unit`. floor: bytes that any implementation must move."""

    op: str
    variant: str
    shape: str
    dtype: str
    floor: int
    unit: str
    p20: float
    p50: float
    p80: float
    device: str
    threads: int
    torch: str
    triton: str
    commit: str
    date: str


@dataclass(frozen=True)
class Benchmark:
    """One operation on one input. variants: by name a function that does it once; `ours` among them.

    floor: bytes that any implementation must read and write. check: raises where `ours` is wrong.
    """

    op: str
    shape: str
    dtype: str
    floor: int
    variants: dict[str, Callable[[], object]]
    check: Callable[[], None]


def measured(benchmark: Benchmark, *, device: str, repetitions: int) -> list[Row]:
    """A row for each variant. One round of all after another, so that a busy moment meets every one."""
    benchmark.check()
    for run in benchmark.variants.values():  # caches, compilation
        run()
    times: dict[str, list[float]] = {name: [] for name in benchmark.variants}
    for _ in range(repetitions):
        for name, run in benchmark.variants.items():
            times[name].append(_milliseconds(run, device))
    return [_row(benchmark, name, each, device) for name, each in times.items()]


def _milliseconds(run: Callable[[], object], device: str) -> float:
    if device == "cpu":
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _row(benchmark: Benchmark, variant: str, times: list[float], device: str) -> Row:
    p20, p50, p80 = (float(torch.tensor(times).quantile(q)) for q in (0.2, 0.5, 0.8))
    return Row(
        op=benchmark.op,
        variant=variant,
        shape=benchmark.shape,
        dtype=benchmark.dtype,
        floor=benchmark.floor,
        unit="ms",
        p20=round(p20, 4),
        p50=round(p50, 4),
        p80=round(p80, 4),
        device=_device_name(device),
        threads=torch.get_num_threads() if device == "cpu" else 0,
        torch=torch.__version__,
        triton=_triton_version(),
        commit=_commit(),
        date=datetime.date.today().isoformat(),
    )


def append(rows: list[Row], path: Path = RESULTS) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def _device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _triton_version() -> str:
    if importlib.util.find_spec("triton") is None:
        return ""
    import triton

    return str(triton.__version__)


def _commit() -> str:
    command = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty", "--exclude=*"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    return ended.stdout.strip()
