"""A run that was stopped and resumed ends bit-equal to the one that was not, for every engine and place of the save."""

from pathlib import Path

import pytest

from loco_train.data.ledger import coverage
from loco_train.telemetry.events import StepDone
from loco_train.telemetry.report import events_path, read_events
from loco_train.testing import World, run_islands
from loco_train.testing.runs import state_digests, tiny_trainer

INNER_STEPS = 4
ROUNDS = 3


class Stopped(Exception):
    """The test's way to end a process right after a save."""


def train(world: World, settings: dict, stop_at_step: int | None) -> dict[str, str]:
    trainer = tiny_trainer(world, settings)
    save = trainer.keeper.save

    def save_and_stop(progress):
        save(progress)
        if stop_at_step is not None and progress.step >= stop_at_step:
            raise Stopped

    trainer.keeper.save = save_and_stop
    try:
        trainer.run()
    except Stopped:
        return {}
    return state_digests(trainer)


def losses(run_dir: Path) -> dict[int, float]:
    return {e.step: e.loss for e in read_events(events_path(run_dir, 0)) if isinstance(e, StepDone)}


CASES = {
    "two islands, TP 2": (2, 2, {"parallel.tensor": 2}),
    "ZeRO 1": (1, 2, {"parallel.data": 2, "precision.parameters": "bf16"}),
    "ZeRO 2": (1, 2, {"parallel.data": 2, "parallel.zero_stage": 2}),
    "ZeRO 3": (1, 2, {"parallel.data": 2, "parallel.zero_stage": 3, "precision.parameters": "bf16"}),
    "two islands, PP 2, tied": (2, 2, {"parallel.pipeline": 2, "model.tied_embeddings": True}),
    "data parallel": (1, 2, {"parallel.data": 2, "method.composition": "data-parallel"}),
}


@pytest.mark.parametrize("case", CASES)
# Step 6 is inside the second round, step 8 at its end.
@pytest.mark.parametrize("stop_at_step", [6, 8])
def test_resume_is_bit_equal_and_consumes_each_sample_once(case, stop_at_step, tiny_data, tmp_path):
    islands, ranks, changes = CASES[case]
    base = {**tiny_data, **changes, "rounds": ROUNDS, "method.inner_steps": INNER_STEPS, "checkpoint.every_steps": 2}

    def run(name: str, stop: int | None) -> list[list[dict[str, str]]]:
        settings = {**base, "run_dir": str(tmp_path / name)}
        return run_islands(train, settings, stop, islands=islands, ranks=ranks)

    unbroken = run("unbroken", None)
    run("broken", stop_at_step)
    resumed = run("broken", None)
    assert resumed == unbroken
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    assert set(losses(tmp_path / "broken")) == set(range(1, ROUNDS * INNER_STEPS + 1))
    for name in ("unbroken", "broken"):
        found = coverage(events_path(tmp_path / name, i).with_name("ledger.jsonl") for i in range(islands))
        assert found.exact
        assert found.consumed.stop == islands * ROUNDS * INNER_STEPS * 8
