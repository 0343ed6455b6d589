import json
from dataclasses import asdict
from pathlib import Path

from loco_train.launch.follow import EventTail, Standing
from loco_train.telemetry.events import Event, RoundDone, StepDone
from loco_train.telemetry.report import events_path
from loco_train.testing.tiny import tiny_run


def line(event: Event) -> str:
    return json.dumps({"type": type(event).__name__, "time": 0.0, **asdict(event)}) + "\n"


def step(number: int, *, loss: float) -> StepDone:
    return StepDone(number, 0, loss, lr=0.1, grad_norm=1.0, tokens=8, tokens_per_second=50.0, step_seconds=1.0)


def round_done(number: int) -> RoundDone:
    return RoundDone(number * 30, number, 1.0, 0.5, 0.1, 4, None, pseudo_gradient_norm=1.0, spread_l2=0.0)


def test_a_tail_gives_only_what_is_added_and_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(step(1, loss=9.0)))
    tail = EventTail(path)
    whole = line(step(3, loss=2.0))
    with path.open("a") as file:
        file.write(line(step(2, loss=3.0)) + whole[:20])
        file.flush()
        assert [event.step for event in tail.read()] == [2]
        assert tail.read() == []
        file.write(whole[20:])
        file.flush()
        assert [event.step for event in tail.read()] == [3]


def test_a_round_is_done_when_the_last_island_has_done_it(tmp_path: Path) -> None:
    standing = Standing(tmp_path, tiny_run({"rounds": 7, "islands.count": 2}))
    paths = [events_path(tmp_path, island) for island in range(2)]
    for path in paths:
        path.parent.mkdir(parents=True)

    assert (standing.update(), standing.summary()) == ([], "starting")
    paths[0].write_text(line(step(30, loss=2.0)) + line(round_done(1)))
    assert standing.update() == []
    assert (standing.round, standing.steps, standing.steps_in_all) == (0, 30, 7 * 30 * 2)
    paths[1].write_text(line(step(30, loss=4.0)) + line(round_done(1)))
    assert standing.update() == ["round 1/7  loss 3.0000  100 tokens/s  waited 0.50 s"]
    assert (standing.round, standing.steps) == (1, 60)
