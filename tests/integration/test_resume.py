"""A run that was stopped and resumed ends bit-equal to the one that was not, for every engine and place of the save."""

import hashlib
from pathlib import Path

import pytest
import torch

from loco_train.config.load import available, load_run
from loco_train.data.ledger import coverage
from loco_train.errors import TransportError
from loco_train.telemetry.events import StepDone
from loco_train.telemetry.report import events_path, read_events
from loco_train.testing import World, run_islands
from loco_train.testing.runs import state_digests, tiny_trainer
from loco_train.testing.tiny import tiny_run

INNER_STEPS = 4
ROUNDS = 3


class Stopped(Exception):
    """The test's way to end a process right after a save."""


def train(
    world: World, settings: dict, stop_at_step: int | None, stop_at_round: int = ROUNDS, *, run_id: str = "tiny"
) -> dict[str, str]:
    """Digests of all that training changed; none where it was stopped, at a step or past a round's first save."""
    trainer = tiny_trainer(world, settings, run_id=run_id)
    if trainer.progress.step == 0:
        torch.manual_seed(10 * world.island + world.rank)
    save = trainer.keeper.save

    def save_and_stop(progress):
        save(progress)
        if progress.round >= stop_at_round or (stop_at_step is not None and progress.step >= stop_at_step):
            raise Stopped

    trainer.keeper.save = save_and_stop
    try:
        trainer.run()
    except Stopped:
        return {}
    except TransportError:
        # With gossip an island may be stopped while another is still at the round before.
        assert stop_at_round < ROUNDS
        return {}
    return {**state_digests(trainer), "rng": hashlib.sha256(bytes(torch.get_rng_state())).hexdigest()}


def losses(run_dir: Path) -> dict[int, float]:
    return {e.step: e.loss for e in read_events(events_path(run_dir, 0)) if isinstance(e, StepDone)}


CASES = {
    "two islands, TP 2": (2, 2, {"parallel.tensor": 2}),
    "ZeRO 1": (1, 2, {"parallel.data": 2, "precision.parameters": "bf16"}),
    "ZeRO 2": (1, 2, {"parallel.data": 2, "parallel.zero_stage": 2}),
    "ZeRO 3": (1, 2, {"parallel.data": 2, "parallel.zero_stage": 3, "precision.parameters": "bf16"}),
    "two islands, PP 2, tied": (2, 2, {"parallel.pipeline": 2, "model.tied_embeddings": True}),
    "data parallel": (1, 2, {"parallel.data": 2, "method.rule": "none", "method.mix2.peers": "nobody"}),
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


METHODS = {
    # Another momentum on each island; mix1 is under way at every save.
    "factored-global-m1-local-m2-subset": {},
    "factored-global-m1s-local-m2": {"parallel.tensor": 2},
    "factored-local-m1m2": {"model.tied_embeddings": True, "parallel.pipeline": 2},
    "gasloc-2peer": {"method.inner_steps": [4, 2, 3]},
    "gasloc-1peer": {"precision.parameters": "bf16", "parallel.data": 2},
    "local-dadam": {"method.outer": {"kind": "heavy-ball", "lr": 0.5, "momentum": 0.5}},
    "isoloco": {"parallel.tensor": 2},
    # A fragment is under way at every save, and what was sent of it cannot be made again.
    "streaming-diloco": {"method.streaming.fragments": 2},
}


def train_until(world: World, settings: dict, round: int | None, *, run_id: str = "tiny") -> dict[str, str]:
    return train(world, settings, None, ROUNDS + 1 if round is None else round, run_id=run_id)


@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_method_resumes_bit_equal(name, tiny_data, tmp_path):
    """Stopped at the first save of the second round, which islands reach at different steps."""
    method = load_run("quickstart", [f"method={name}", "islands.count=3"]).config.method.model_dump(mode="json")
    base = {**tiny_data, "method": {**method, "inner_steps": 4}, **METHODS[name], "checkpoint.every_steps": 2}
    ranks = tiny_run({k: v for k, v in base.items() if k.startswith(("parallel", "model"))}).parallel.ranks

    def run(folder: str, round: int | None) -> list[list[dict[str, str]]]:
        settings = {**base, "rounds": ROUNDS, "run_dir": str(tmp_path / folder)}
        return run_islands(train_until, settings, round, islands=3, ranks=ranks)

    unbroken = run("unbroken", None)
    run("broken", 1)
    assert run("broken", None) == unbroken
    momenta = [{k: v for k, v in island[0].items() if k.startswith("momentum/")} for island in unbroken]
    # Two peers out of three islands are everybody.
    assert (momenta[0] == momenta[1] == momenta[2]) == (name in ("isoloco", "gasloc-2peer", "streaming-diloco"))
    for folder in ("unbroken", "broken"):
        assert coverage(events_path(tmp_path / folder, i).with_name("ledger.jsonl") for i in range(3)).exact


OTHERS = sorted(set(available("methods")) - set(METHODS) - {"data-parallel"})


def break_and_resume(world: World, settings: dict, methods: list[str]) -> dict[str, list[dict[str, str]]]:
    """By method: the digests of an unbroken run, and of one that was stopped in its second round and resumed."""
    found = {}
    for name in methods:
        method = load_run("quickstart", [f"method={name}", "islands.count=2"]).config.method.model_dump(mode="json")
        run = {**settings, "method": {**method, "inner_steps": 4}}
        ends = [
            train_until(world, {**run, "run_dir": f"{settings['run_dir']}/{name}-{folder}"}, stop, run_id=name + folder)
            for folder, stop in (("unbroken", None), ("broken", 1), ("broken", None))
        ]
        found[name] = [ends[0], ends[2]]
    return found


# Megatron leaves process groups behind each time an island is joined: some methods in one process, not all.
@pytest.mark.parametrize("methods", [OTHERS[first::3] for first in range(3)], ids=", ".join)
def test_all_other_methods_resume_bit_equal(methods, tiny_data, tmp_path):
    base = {**tiny_data, "rounds": ROUNDS, "checkpoint.every_steps": 2, "run_dir": str(tmp_path)}
    for island in run_islands(break_and_resume, base, methods, islands=2):
        for name, (unbroken, resumed) in island[0].items():
            assert unbroken
            assert (name, resumed) == (name, unbroken)


def start_again_at_the_same_rendezvous(world: World, settings: dict, stop: int) -> dict[str, str]:
    train(world, settings, stop)
    return train(world, settings, None)


def test_islands_meet_again_at_a_rendezvous_that_outlived_them(tiny_data, tmp_path):
    base = {**tiny_data, "rounds": ROUNDS, "method.inner_steps": INNER_STEPS, "checkpoint.every_steps": 2}
    unbroken = run_islands(train, {**base, "run_dir": str(tmp_path / "unbroken")}, None, islands=2)
    broken = {**base, "run_dir": str(tmp_path / "broken")}
    assert run_islands(start_again_at_the_same_rendezvous, broken, 6, islands=2) == unbroken
