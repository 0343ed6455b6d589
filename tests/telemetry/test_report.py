"""What a run's events add up to: over islands, over a kill and a resume."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from loco_train.errors import DataError
from loco_train.telemetry.events import EvaluationDone, Event, RoundDone, RunStarted, StepDone
from loco_train.telemetry.report import events_path, island_report, run_report


def started(at_step: int) -> RunStarted:
    return RunStarted(
        step=at_step, round=0, run_name="r", run_id="r", island=0, islands=2, ranks=1, parameters=1,
        resumed_from="there" if at_step else None,
    )  # fmt: skip


def step(number: int, *, loss: float) -> StepDone:
    """A step of 2 s on 100 tokens."""
    return StepDone(
        step=number, round=0, loss=loss, lr=1.0, grad_norm=1.0, tokens=200 * number, tokens_per_second=50.0,
        step_seconds=2.0,
    )  # fmt: skip


def round_done(number: int, *, sent: int, on_sockets: int | None) -> RoundDone:
    return RoundDone(
        step=2 * number, round=number, compute_seconds=4.0, wait_seconds=1.0, outer_seconds=0.5, bytes_sent=sent,
        socket_bytes_sent=on_sockets, pseudo_gradient_norm=1.0, spread_l2=1.0,
    )  # fmt: skip


def evaluated(at_step: int, scope: str, loss: float) -> EvaluationDone:
    return EvaluationDone(step=at_step, round=0, scope=scope, loss=loss, perplexity=1.0, seconds=1.0)


def write(run_dir: Path, island: int, events: list[tuple[float, Event]]) -> None:
    path = events_path(run_dir, island)
    path.parent.mkdir(parents=True)
    lines = [{"type": type(event).__name__, "time": at, **asdict(event)} for at, event in events]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


FIRST_START = [
    (100.0, started(0)),
    (110.0, evaluated(0, "consensus", 8.0)),
    (112.0, step(1, loss=7.0)),
    (114.0, step(2, loss=6.0)),
    (115.0, round_done(1, sent=1000, on_sockets=1100)),
    (117.0, step(3, loss=5.5)),  # killed after this; resumed from step 2
]
SECOND_START = [
    (500.0, started(2)),
    (512.0, step(3, loss=5.0)),
    (514.0, step(4, loss=4.0)),
    (515.0, evaluated(4, "island", 4.5)),
    (518.0, round_done(2, sent=1000, on_sockets=1100)),
    (520.0, evaluated(4, "consensus", 4.0)),
]


def test_one_island_over_a_resume(tmp_path):
    write(tmp_path, 0, FIRST_START + SECOND_START)
    report = island_report(tmp_path, 0)
    assert (report.steps, report.rounds, report.tokens) == (4, 2, 400)
    assert (report.bytes_sent, report.socket_bytes_sent) == (2000, 2200)
    # 110 to 117 and 510 to 520: what was before the first step, and between the starts, is no training.
    assert (report.wall_seconds, report.compute_seconds) == (17.0, 10.0)
    assert report.compute_utilization == pytest.approx(10 / 17)
    assert report.tokens_per_second == pytest.approx(500 / 17)
    assert (report.loss, report.consensus_loss_before, report.consensus_loss_after) == (4.0, 8.0, 4.0)
    assert report.island_loss_after == 4.5


def test_a_run_sums_its_islands(tmp_path):
    write(tmp_path, 0, FIRST_START + SECOND_START)
    write(tmp_path, 1, [(100.0, started(0)), (112.0, step(1, loss=7.0)), (114.0, step(2, loss=7.0))])
    report = run_report(tmp_path)
    assert [island.island for island in report.islands] == [0, 1]
    assert report.tokens == 600
    assert report.tokens_per_second == pytest.approx(500 / 17 + 50)
    assert report.compute_utilization == pytest.approx((10 / 17 + 1) / 2)
    assert (report.bytes_sent, report.socket_bytes_sent) == (2000, 2200)
    assert (report.consensus_loss_before, report.consensus_loss_after) == (8.0, 4.0)


def test_an_island_that_has_just_started(tmp_path):
    write(tmp_path, 0, [(1.0, started(0))])
    report = run_report(tmp_path)
    assert (report.tokens, report.tokens_per_second, report.compute_utilization) == (0, 0.0, None)
    assert report.socket_bytes_sent is None


def test_no_run_no_report(tmp_path):
    with pytest.raises(DataError, match="there are no events"):
        run_report(tmp_path)
