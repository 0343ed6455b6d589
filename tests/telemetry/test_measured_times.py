"""An island's times are its median step and its shortest wait; what is not measured yet is told."""

from pathlib import Path

import pytest

from loco_train.errors import ConfigError
from loco_train.telemetry.events import RoundDone, RunStarted, StepDone
from loco_train.telemetry.measured_times import measured_times
from loco_train.telemetry.report import events_path
from loco_train.telemetry.sinks import JsonlSink


def write(run_dir: Path, island: int, steps: list[float], waits: list[float], *, islands: int = 2) -> None:
    path = events_path(run_dir, island)
    path.parent.mkdir(parents=True, exist_ok=True)
    sink = JsonlSink(path)
    sink.write(
        RunStarted(
            step=0, round=0, run_name="r", run_id="i", island=island, islands=islands, ranks=1, parameters=1,
            resumed_from=None,
        )
    )  # fmt: skip
    for seconds in steps:
        sink.write(
            StepDone(
                step=1, round=0, loss=1.0, lr=0.1, grad_norm=1.0, tokens=1, tokens_per_second=1.0, step_seconds=seconds
            )
        )
    for seconds in waits:
        sink.write(
            RoundDone(
                step=1, round=0, compute_seconds=1.0, wait_seconds=seconds, outer_seconds=0.1, bytes_sent=1,
                socket_bytes_sent=None, pseudo_gradient_norm=1.0, spread_l2=None,
            )
        )  # fmt: skip


def test_the_median_step_and_the_shortest_wait(tmp_path):
    write(tmp_path, 0, [9.0, 1.0, 1.2], [5.0, 0.5, 3.0])
    write(tmp_path, 1, [2.0], [0.25])
    times = measured_times(tmp_path)
    assert times.step_seconds == (1.2, 2.0)
    assert times.exchange_seconds == (0.5, 0.25)


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        measured_times(tmp_path)


@pytest.mark.parametrize("steps", [[], [1.0]])
def test_an_island_that_has_ended_no_round(tmp_path, steps):
    write(tmp_path, 0, [1.0], [1.0])
    write(tmp_path, 1, steps, [])
    with pytest.raises(ConfigError, match="island 1 .* has ended no round"):
        measured_times(tmp_path)
    write(tmp_path / "absent", 0, [1.0], [1.0], islands=3)
    with pytest.raises(ConfigError, match="island 1"):
        measured_times(tmp_path / "absent")
