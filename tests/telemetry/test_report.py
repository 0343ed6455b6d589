"""What an island's events add up to, over a kill and a resume."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from loco_train.telemetry.events import EvaluationDone, Event, RoundDone, RunEnded, RunStarted, StepDone
from loco_train.telemetry.report import events_path, island_report


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


def ended(at_step: int, *, wall_seconds: float) -> RunEnded:
    return RunEnded(
        step=at_step, round=2, wall_seconds=wall_seconds, compute_seconds=4.0, compute_utilization=4 / wall_seconds,
        tokens=200 * at_step,
    )  # fmt: skip


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
    (520.0, ended(4, wall_seconds=10.0)),
]


def test_one_island_over_a_resume(tmp_path):
    write(tmp_path, 1, FIRST_START + SECOND_START)
    report = island_report(tmp_path, 1)
    assert report.island == 1
    # Step 3 was done twice, and counts once: as it was done the second time.
    assert (report.steps, report.rounds, report.tokens) == (4, 2, 400)
    assert (report.bytes_sent, report.socket_bytes_sent) == (2000, 2200)
    # Two steps of 100 tokens in the 10 s of the second start.
    assert report.tokens_per_second == pytest.approx(20.0)
    assert report.compute_utilization == pytest.approx(0.4)
    assert (report.consensus_loss_before, report.consensus_loss_after) == (8.0, 4.0)
    assert report.island_loss_after == 4.5


def test_a_start_that_was_killed_has_no_speed(tmp_path):
    write(tmp_path, 0, FIRST_START)
    report = island_report(tmp_path, 0)
    assert (report.steps, report.rounds, report.tokens) == (3, 1, 300)
    assert (report.tokens_per_second, report.compute_utilization) == (None, None)


def test_a_start_after_the_end_does_not_take_the_speed_away(tmp_path):
    # Launching a finished run again trains nothing.
    again = [(600.0, started(4)), (601.0, ended(4, wall_seconds=0.001))]
    write(tmp_path, 0, FIRST_START + SECOND_START + again)
    assert island_report(tmp_path, 0).tokens_per_second == pytest.approx(20.0)


def test_an_island_that_has_just_started(tmp_path):
    write(tmp_path, 0, [(1.0, started(0))])
    report = island_report(tmp_path, 0)
    assert (report.steps, report.tokens, report.bytes_sent) == (0, 0, 0)
    assert (report.socket_bytes_sent, report.consensus_loss_before) == (None, None)


def test_sockets_that_tell_nothing_are_unknown_and_not_zero(tmp_path):
    write(tmp_path, 0, [(1.0, started(0)), (2.0, round_done(1, sent=5, on_sockets=None))])
    assert (island_report(tmp_path, 0).bytes_sent, island_report(tmp_path, 0).socket_bytes_sent) == (5, None)
