"""What each sink makes of a run's events, over a kill and a resume."""

import io
import json
import math
import time
from dataclasses import asdict, replace

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from loco_train.errors import EnvironmentProblem
from loco_train.telemetry.events import (
    CheckpointSaved,
    EvaluationDone,
    HealthMeasured,
    RoundDone,
    RunEnded,
    RunFailed,
    RunStarted,
    StepDone,
)
from loco_train.telemetry.log import EventLog
from loco_train.telemetry.report import read_events, read_records
from loco_train.telemetry.sinks import ConsoleSink, JsonlSink, TensorBoardSink

STARTED = RunStarted(
    step=0, round=0, run_name="[red]", run_id="r", island=1, islands=2, ranks=4, parameters=1_500_000
)  # fmt: skip
ROUND = RoundDone(
    step=2, round=1, compute_seconds=1.0, wait_seconds=0.5, outer_seconds=0.25, bytes_sent=2_000_000,
    socket_bytes_sent=None, pseudo_gradient_norm=3.0, spread_l2=0.125,
)  # fmt: skip
HEALTH = HealthMeasured(
    step=2, round=0, js=0.25, l2=3.0, l2_by_block={"embedding": 1.0, "layers.0.mlp": 2.0},
    js_by_block={"embedding": 0.1}, js_here=0.2, l2_here=2.5, seconds=0.5, bytes_sent=1000,
)  # fmt: skip
EVENTS = [
    STARTED,
    EvaluationDone(step=0, round=0, scope="consensus", loss=8.0, perplexity=2981.0, seconds=1.0),
    HEALTH,
    ROUND,
    CheckpointSaved(step=2, round=1, path="a folder/step-2", seconds=0.5, bytes=1000),
    RunFailed(step=2, round=1, error="PeerLost", message="line one\nline two", exit_code=6),
    RunEnded(step=2, round=1, wall_seconds=2.0, compute_seconds=1.0, compute_utilization=0.5, tokens=512),
]


def step(number: int, *, loss: float = 5.0) -> StepDone:
    return StepDone(
        step=number, round=0, loss=loss, lr=1e-3, grad_norm=0.5, tokens=128 * number, tokens_per_second=640.0,
        step_seconds=0.1,
    )  # fmt: skip


def test_jsonl_gives_back_what_was_emitted(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog([JsonlSink(path)])
    begin = time.time()
    for event in [*EVENTS, step(1)]:
        log.emit(event)
    # Readable while the run goes on: nothing waits in a buffer.
    assert read_events(path) == [*EVENTS, step(1)]
    assert all(begin <= record.time <= time.time() for record in read_records(path))
    log.close()


def test_jsonl_is_appended_to_and_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "events.jsonl"
    JsonlSink(path).write(step(1))
    with path.open("a") as file:
        file.write('{"type": "StepDone", "step": 2, "lo')
    JsonlSink(path).write(step(3))
    assert read_events(path) == [step(1), step(3)]


def test_a_loss_that_is_no_number_leaves_lines_that_any_reader_takes(tmp_path):
    path = tmp_path / "events.jsonl"
    JsonlSink(path).write(step(1, loss=float("nan")))
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["loss"] is None
    (back,) = read_events(path)
    assert math.isnan(back.loss)
    assert replace(back, loss=0.0) == step(1, loss=0.0)


def test_lines_of_other_versions_are_passed_over(tmp_path):
    path = tmp_path / "events.jsonl"
    later = {"type": "StepDone", "time": 1.0, **asdict(step(1)), "new_field": 3}
    lines = [later, {"type": "NewEvent", "time": 1.0}, {"type": "StepDone", "time": 1.0, "step": 1}, [1], "x"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_events(path) == [step(1)]


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=200, soft_wrap=True, highlight=False)


def test_a_file_gets_one_plain_line_an_event_and_few_steps():
    plain = console(terminal=False)
    sink = ConsoleSink(total_steps=20, seconds_between_steps=60, console=plain)
    for event in [STARTED, step(1), step(2), *EVENTS[1:]]:
        sink.write(event)
    sink.close()
    text = plain.file.getvalue()
    lines = text.splitlines()
    assert len(lines) == 8
    assert lines[0] == "island 1 of 2 started: run [red], 4 ranks, 1.50 M parameters, at step 0/20"
    assert lines[1].startswith("step 1/20  loss 5.0000  lr 1.00e-03  grad norm 0.500  640 tokens/s")
    assert "held-out loss of the consensus 8.0000" in lines[2]
    assert "JS 0.2500, L2 3" in lines[3]
    assert "sent 2.00 MB" in lines[4]
    assert "a folder/step-2" in lines[5]
    assert "PeerLost" in lines[6]
    assert "50% of the time in inner steps" in lines[7]
    assert "\x1b" not in text


def test_a_terminal_gets_a_bar_that_ends():
    terminal = console(terminal=True)
    sink = ConsoleSink(total_steps=20, console=terminal)
    for event in [STARTED, step(1), ROUND, step(20)]:
        sink.write(event)
    sink.close()
    text = terminal.file.getvalue()
    assert "\x1b" in text
    assert "step 20/20" in text
    assert "round 1 done" in text
    written = len(text)
    time.sleep(0.3)  # a bar that was not stopped is drawn ten times a second
    assert len(terminal.file.getvalue()) == written


def read_scalars(folder) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_tensorboard_shows_each_step_once_over_a_resume(tmp_path):
    log = EventLog([TensorBoardSink(tmp_path)])
    for event in [STARTED, EVENTS[1], step(1, loss=4.0), step(2, loss=3.0), HEALTH, ROUND, step(3, loss=2.5)]:
        log.emit(event)
    log.close()
    # TensorBoard orders its files by second.
    time.sleep(1.1)
    log = EventLog([TensorBoardSink(tmp_path)])
    log.emit(RunStarted(**{**asdict(STARTED), "step": 2, "resumed_from": "step-2"}))
    log.emit(step(3, loss=2.0))
    log.close()
    found = read_scalars(tmp_path)
    assert found["step/loss"] == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert found["step/lr"][0] == (1, pytest.approx(1e-3))
    assert found["heldout/consensus_loss"] == [(0, 8.0)]
    assert found["health/js"] == [(2, 0.25)]
    assert found["health_l2/layers.0.mlp"] == [(2, 2.0)]
    assert found["round/spread_l2"] == [(2, 0.125)]
    assert found["round/bytes_sent"] == [(2, 2e6)]


def test_telling_a_step_costs_well_under_a_millisecond(tmp_path):
    sinks = [
        JsonlSink(tmp_path / "events.jsonl"),
        ConsoleSink(total_steps=1000, console=console(terminal=False)),
        TensorBoardSink(tmp_path / "tensorboard"),
    ]
    log = EventLog(sinks)
    log.emit(step(0))
    # Processor time, and the best of five: this machine is shared, and what is asked is what a step costs.
    costs = []
    for _ in range(5):
        begin = time.thread_time()
        for number in range(100):
            log.emit(step(number))
        costs.append((time.thread_time() - begin) / 100)
    log.close()
    assert min(costs) < 1e-3


def test_a_full_disk_is_an_error_with_a_way_out():
    class Full:
        def write(self, event):
            raise OSError(28, "No space left on device")

    with pytest.raises(EnvironmentProblem, match=r"cannot write StepDone[^$]*No space left[^$]*free space there"):
        EventLog([Full()]).emit(step(1))


def test_a_round_of_gossip_has_no_spread_and_every_sink_takes_it(tmp_path):
    round_done = replace(ROUND, spread_l2=None)
    shown = io.StringIO()
    console = ConsoleSink(total_steps=4, console=Console(file=shown, width=200))
    log = EventLog([JsonlSink(tmp_path / "events.jsonl"), console, TensorBoardSink(tmp_path / "board")])
    log.emit(round_done)
    log.close()
    assert read_events(tmp_path / "events.jsonl") == [round_done]
    assert "round 1 done" in shown.getvalue()
    found = EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    assert "round/wait_seconds" in found.Tags()["scalars"]
    assert "round/spread_l2" not in found.Tags()["scalars"]
