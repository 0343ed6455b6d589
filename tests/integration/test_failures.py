"""Islands that die, go wrong or do not fit: said on every rank, nothing half applied, and the run can go on."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from loco_train.checkpoint import committed_steps, island_checkpoints, write
from loco_train.checkpoint.steps import step_name
from loco_train.config.load import load_run
from loco_train.data.ledger import coverage
from loco_train.errors import (
    CheckpointError,
    DataError,
    FailedElsewhere,
    IslandMismatch,
    LocoError,
    NonFinite,
    TransportError,
)
from loco_train.outer.draw import Draw
from loco_train.outer.peers import RandomPair
from loco_train.telemetry.report import events_path
from loco_train.testing import World, run_islands, run_ranks
from loco_train.testing.runs import state_digests, tiny_trainer, write_tiny_data
from loco_train.testing.tiny import tiny_run
from loco_train.training import meeting

ROUNDS, INNER_STEPS = 3, 2


def settings_of(tiny_data: dict, run_dir: Path, **changes) -> dict:
    base = {**tiny_data, "run_dir": str(run_dir), "rounds": ROUNDS, "method.inner_steps": INNER_STEPS}
    return {**base, "parallel.tensor": 2, "network.exchange_timeout": "20s", **changes}


MOMENTS = {
    "inner steps": ("evaluator", "before_outer_step"),
    "exchange": ("outer_step", "_exchange"),
    "first inner step": ("keeper", "is_due_inside"),
    "measuring": ("outer_step", "own_and_mean"),
    "telling what was measured": ("outer_step", "of_every_island"),
}
# Both who measure do so in every round.
MEASURING = {
    "health.every_rounds": 1,
    "method.mix1.peers": "all",
    "method.mix2": {"peers": "random-pair", "blocks": "measured", "budget": "100kB", "measure_every_rounds": 1},
}


def die(world: World, settings: dict, moment: str, in_round: int) -> tuple[str, float, list[int]]:
    """Island 1 is killed in a round, at one of `MOMENTS`."""
    trainer = tiny_trainer(world, settings)

    if world.island == 1:
        part, name = MOMENTS[moment]
        original = getattr(getattr(trainer, part), name)

        def deadly(progress, *more):
            if progress.round == in_round:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(progress, *more)

        setattr(getattr(trainer, part), name, deadly)
    begin = time.monotonic()
    with pytest.raises(TransportError) as caught:
        trainer.run()
    folder = island_checkpoints(Path(settings["run_dir"]), world.island)
    return str(caught.value), time.monotonic() - begin, list(committed_steps(folder))


def train(world: World, settings: dict) -> dict[str, str]:
    trainer = tiny_trainer(world, settings)
    trainer.run()
    return state_digests(trainer)


def drift_in_round_one(world: World, settings: dict) -> str:
    """One bit of island 1's base is another when the second round begins, as memory that fails would make it."""
    trainer = tiny_trainer(world, settings)
    begin_round = trainer.outer_step.begin_round

    def damage(progress):
        if progress.round == 1 and world.island == 1 and world.rank == 1:
            trainer.outer_step.state.base.view(torch.int32)[5] ^= 1
        begin_round(progress)

    trainer.outer_step.begin_round = damage
    with pytest.raises(IslandMismatch) as caught:
        trainer.run()
    return str(caught.value)


def test_a_single_bit_by_which_equal_islands_differ_ends_the_run(tiny_data, tmp_path):
    results = run_islands(drift_in_round_one, settings_of(tiny_data, tmp_path), islands=2, ranks=2)
    for island, other in ((0, 1), (1, 0)):
        for message in results[island]:
            assert "round 1: the parameters at the start of the round are not equal on all islands" in message
            assert f"others at island {other} than here" in message


@pytest.mark.parametrize("moment", ["inner steps", "exchange", "measuring", "telling what was measured"])
def test_a_killed_island_ends_the_other_with_a_whole_checkpoint_and_both_resume_bit_equal(moment, tiny_data, tmp_path):
    changes = MEASURING if "measur" in moment else {}
    unbroken = run_islands(train, settings_of(tiny_data, tmp_path / "unbroken", **changes), islands=2, ranks=2)
    settings = settings_of(tiny_data, tmp_path / "broken", **changes)
    survivors, _ = run_islands(die, settings, moment, 1, islands=2, ranks=2, mortal=[1])
    for message, seconds, steps in survivors:
        assert "island" in message
        assert seconds < 20
        # After round 0, and the state before the outer step of round 1 that could not be taken.
        assert steps == [INNER_STEPS, 2 * INNER_STEPS]
    assert run_islands(train, settings, islands=2, ranks=2) == unbroken
    found = coverage(events_path(tmp_path / "broken", i).with_name("ledger.jsonl") for i in range(2))
    assert found.exact


def die_while_saving(world: World, settings: dict, function: str, rank: int) -> None:
    """A rank of island 1 is killed in the second save, as it is about to call a function of checkpoint/write.py."""
    trainer = tiny_trainer(world, settings)
    if world.island == 0:
        with pytest.raises(TransportError):
            trainer.run()
        return
    original = getattr(write, function)

    def deadly(*args):
        if trainer.progress.round == 2 and world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    setattr(write, function, deadly)
    try:
        trainer.run()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)  # as torchrun does with the ranks that are left


@pytest.mark.parametrize(
    ("function", "rank"), [("_write_rank", 1), ("_write_rank", 0), ("_finish", 0), ("point_to", 0)]
)
def test_a_rank_killed_while_its_island_saves_leaves_the_last_whole_checkpoint(function, rank, tiny_data, tmp_path):
    unbroken = run_islands(train, settings_of(tiny_data, tmp_path / "unbroken"), islands=2, ranks=2)
    settings = settings_of(tiny_data, tmp_path / "broken")
    run_islands(die_while_saving, settings, function, rank, islands=2, ranks=2, mortal=[1])
    saved = list(committed_steps(island_checkpoints(tmp_path / "broken", 1)))
    # Renamed but not yet pointed to, it is no checkpoint yet.
    assert saved == [INNER_STEPS]
    assert run_islands(train, settings, islands=2, ranks=2) == unbroken


@pytest.mark.parametrize(
    ("in_round", "changes"),
    [
        (0, {}),  # nothing was ever saved there
        (1, {"checkpoint.every_steps": 1, "method.inner_steps": 6}),  # the other one saves on, six times
        (2, {"checkpoint.every_steps": 1, "checkpoint.every_rounds": 2, "method.inner_steps": 4}),
        (2, {"checkpoint.every_rounds": 3}),  # before the first save: from the start again
    ],
)
def test_wherever_an_island_dies_the_same_command_goes_on(in_round, changes, tiny_data, tmp_path):
    changes = {"parallel.tensor": 1, **changes}
    unbroken = run_islands(train, settings_of(tiny_data, tmp_path / "unbroken", **changes), islands=2)
    settings = settings_of(tiny_data, tmp_path / "broken", **changes)
    run_islands(die, settings, "first inner step", in_round, islands=2, mortal=[1])
    assert run_islands(train, settings, islands=2) == unbroken
    found = coverage(events_path(tmp_path / "broken", i).with_name("ledger.jsonl") for i in range(2))
    assert found.exact


def fail_to_set_out_on_one_rank(world: World, settings: dict) -> str:
    """Rank 1 of island 1 finds its group broken as it starts the exchange of round 1; the other ranks do not."""
    trainer = tiny_trainer(world, settings)
    exchange = trainer.outer_step.method.exchange

    def exchanged(state, contribution, draw, communicator):
        if draw.round == 1 and (world.island, world.rank) == (1, 1):
            raise TransportError("the group broke before")
        return exchange(state, contribution, draw, communicator)

    object.__setattr__(trainer.outer_step.method, "exchange", exchanged)
    with pytest.raises(TransportError) as caught:
        trainer.run()
    return str(caught.value)


def test_a_rank_that_cannot_even_start_an_exchange_leaves_nobody_waiting(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"network.exchange_timeout": "5s"})
    begin = time.monotonic()
    results = run_islands(fail_to_set_out_on_one_rank, settings, islands=2, ranks=2)
    assert time.monotonic() - begin < 60
    assert "the group broke before" in results[1][1]


def fail_at_one_island(world: World, settings: dict) -> tuple[str, bool]:
    """The exchange of round 1 comes through at island 0 and fails at island 1; both are alive."""
    trainer = tiny_trainer(world, settings)
    exchange, outer_state = trainer.outer_step.method.exchange, trainer.outer_step.state
    before: dict[str, torch.Tensor] = {}

    class Broken:
        def __init__(self, pending):
            self.pending = pending

        def wait(self):
            self.pending.wait()
            before.update(base=outer_state.base.clone(), momentum=outer_state.momentum.clone())
            if world.island == 1:
                raise TransportError("the link broke", got="after everything had come through")

    def exchanged(state, contribution, draw, communicator):
        pending = exchange(state, contribution, draw, communicator)
        return Broken(pending) if draw.round == 1 else pending

    object.__setattr__(trainer.outer_step.method, "exchange", exchanged)
    with pytest.raises(TransportError) as caught:
        trainer.run()
    state = trainer.outer_step.state
    return str(caught.value), torch.equal(state.base, before["base"]) and torch.equal(
        state.momentum, before["momentum"]
    )


def test_what_came_through_at_one_island_only_is_applied_nowhere(tiny_data, tmp_path):
    unbroken = run_islands(train, settings_of(tiny_data, tmp_path / "unbroken"), islands=2, ranks=2)
    settings = settings_of(tiny_data, tmp_path / "broken")
    first, second = run_islands(fail_at_one_island, settings, islands=2, ranks=2)
    assert all("round-1/exchanged: the exchange failed at island 1" in message for message, _ in first)
    assert all("the link broke" in message for message, _ in second)
    assert all(untouched for _, untouched in (*first, *second))
    assert run_islands(train, settings, islands=2, ranks=2) == unbroken


def killed_in_mid_exchange(world: World, settings: dict, moment: str) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Island 1 is killed in the exchange of round 1: as it has set out, or when everything has come through.

    Of the other islands: their ends of round 1, base and parameters after its outer step, and whether that failed.
    """
    trainer = tiny_trainer(world, settings)
    step, exchange, flat = trainer.outer_step.run, trainer.outer_step.method.exchange, trainer.outer_step.scratch
    found: list = []

    class Deadly:
        def __init__(self, pending):
            self.pending = pending

        def wait(self):
            if moment == "all has come through":
                self.pending.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    def exchanged(state, contribution, draw, communicator):
        pending = exchange(state, contribution, draw, communicator)
        return Deadly(pending) if (draw.round, world.island) == (1, 1) else pending

    def values() -> Tensor:
        trainer.engine.views.read(read := torch.zeros_like(flat))
        return read

    def watched(progress, *, learned):
        if progress.round != 1:
            return step(progress, learned=learned)
        end = values()
        try:
            report = step(progress, learned=learned)
        finally:
            found.extend((end, trainer.outer_step.state.base.clone(), values()))
        found.append(False)
        return report

    object.__setattr__(trainer.outer_step.method, "exchange", exchanged)
    trainer.outer_step.run = watched
    with pytest.raises(TransportError):
        trainer.run()
    return (*found, True)[:4]


@pytest.mark.parametrize("moment", ["it has set out", "all has come through"])
def test_one_side_of_a_pair_killed_in_mid_exchange_moves_nothing_on_the_other(moment, tiny_data, tmp_path):
    """T10: no one-sided update, and the mean kept. lr 1 without momentum: a pair's new base is the mean of its ends."""
    method = load_run("quickstart", ["method=gasloc-1peer"]).config.method.model_dump(mode="json")
    method |= {"inner_steps": INNER_STEPS, "outer": {"lr": 1.0, "momentum": 0.0}}
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1, "method": method, "rounds": 8})
    seed = tiny_run(settings).seed
    partner = RandomPair().weights(4, Draw(seed, 1, purpose="mix2")).neighbours(1)[0]
    results = run_islands(killed_in_mid_exchange, settings, moment, islands=4, mortal=[1])
    end, base, parameters, failed = results[partner][0]
    assert failed
    assert torch.equal(parameters, end)
    assert not torch.equal(base, end)  # the start of the round, still
    (end, base, parameters, failed), other = (results[i][0] for i in range(4) if i not in (1, partner))
    # They see that a connection to island 1 is closed, and may or may not have agreed by then: both of them, or none.
    assert failed == other[-1]
    if failed:
        assert torch.equal(parameters, end)
        assert torch.equal(other[2], other[0])
    else:
        # Subtracted from another start on each side: equal up to the rounding of parameters below 8 (2^-21).
        mean = (end + other[0]) / 2
        for applied in (base, other[1]):
            torch.testing.assert_close(applied, mean, rtol=0, atol=1e-6)


def start_with_another_shard(world: World, settings: dict) -> str:
    """Island 1 holds a shard of another length, as another version of the engine might cut it; settings are equal."""
    gather = meeting._gather

    def longer(mine):
        document = gather(mine)
        if world.island == 1 and isinstance(mine, list):
            document["0"][0]["length"] += 1
        return document

    meeting._gather = longer
    with pytest.raises(IslandMismatch) as caught:
        tiny_trainer(world, settings)
    return str(caught.value)


def test_islands_that_hold_other_shards_are_refused_and_named(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    for (message,) in run_islands(start_with_another_shard, settings, islands=2):
        assert "do not fit each other (parameters)" in message
        assert "rank.0[0].length" in message


def every_step_is_skipped(world: World, settings: dict) -> str:
    """Island 1's gradients are infinite in round 1: DeepSpeed leaves out such steps, and says nothing."""
    trainer = tiny_trainer(world, settings)
    step = trainer.engine.step

    def skipped(batches, *, lr):
        result = step(batches, lr=lr)
        if trainer.progress.round == 1 and world.island == 1:
            result = replace(result, grad_norm=float("inf"))
        return result

    trainer.engine.step = skipped
    with pytest.raises(NonFinite) as caught:
        trainer.run()
    return str(caught.value)


def test_an_island_that_skips_every_step_of_a_round_is_no_training(tiny_data, tmp_path):
    for island in run_islands(every_step_is_skipped, settings_of(tiny_data, tmp_path), islands=2, ranks=2):
        for message in island:
            assert "round 1: NaN or infinity in the gradients in every step of the round of island 1" in message


def resume_beside_a_damaged_island(world: World, settings: dict) -> str:
    if world.island == 1:
        folder = island_checkpoints(Path(settings["run_dir"]), 1)
        (folder / step_name(committed_steps(folder)[-1]) / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError if world.island == 1 else FailedElsewhere) as caught:
        tiny_trainer(world, settings)
    return str(caught.value)


def test_a_damaged_newest_checkpoint_is_told_on_every_island_at_once(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    run_islands(train, settings, islands=2)
    begin = time.monotonic()
    (first,), (second,) = run_islands(resume_beside_a_damaged_island, settings, islands=2)
    assert time.monotonic() - begin < 60  # and not at the deadline of the rendezvous
    assert "reading checkpoints failed on another island" in first
    assert f"write {step_name(2 * INNER_STEPS)} into" in second


def test_an_older_damaged_checkpoint_does_not_stop_a_run(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    whole = run_islands(train, settings, islands=2)
    folder = island_checkpoints(tmp_path, 1)
    (folder / step_name(2 * INNER_STEPS) / "manifest.json").write_text("{")
    assert run_islands(train, settings, islands=2) == whole


def train_from_own_copy(world: World, settings: dict) -> dict[str, str]:
    folder = Path(settings["data.tokenizer"]).parent
    if world.island == 1:
        folder = Path(shutil.copytree(folder, Path(settings["run_dir"]) / "copy"))
    paths = {"data.tokenizer": str(folder / "tokenizer.model"), "data.train": [{"path": str(folder / "corpus")}]}
    return train(world, {**settings, **paths})


def test_each_island_may_keep_its_data_where_it_likes(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    (first,), (second,) = run_islands(train_from_own_copy, settings, islands=2)
    for key in first:
        if key.startswith("master/"):
            assert first[key] == second[key]


def go_wrong(world: World, settings: dict) -> tuple[str, bool, bool]:
    trainer = tiny_trainer(world, settings)
    before_outer_step = trainer.evaluator.before_outer_step
    state = trainer.engine.views.state()
    kept: dict[str, torch.Tensor] = {}

    def spoil(progress):
        before_outer_step(progress)
        if progress.round == 1:
            if (world.island, world.rank) == (1, 1):
                next(iter(state.values()))[0] = float("nan")
            kept.update({key: value.clone() for key, value in state.items()})
            kept["base"] = trainer.outer_step.state.base.clone()

    trainer.evaluator.before_outer_step = spoil
    with pytest.raises(NonFinite) as caught:
        trainer.run()
    untouched = all(torch.equal(kept[key], value) for key, value in state.items() if not kept[key].isnan().any())
    untouched = untouched and torch.equal(kept["base"], trainer.outer_step.state.base)
    finite = all(bool(value.isfinite().all()) for value in state.values())
    return str(caught.value), untouched, finite


def test_a_nan_on_one_rank_of_one_island_stops_all_and_reaches_nobody(tiny_data, tmp_path):
    results = run_islands(go_wrong, settings_of(tiny_data, tmp_path), islands=2, ranks=2)
    for island, ranks in enumerate(results):
        for rank, (message, untouched, finite) in enumerate(ranks):
            assert "round 1: NaN or infinity in the parameters of island 1" in message
            assert untouched
            assert finite == ((island, rank) != (1, 1))


def start_with(world: World, settings: dict, changes: dict, only_island: int) -> tuple[str, str]:
    """The error of starting with changes on one island; refused before any step."""
    mine = {**settings, **changes} if world.island == only_island else settings
    with pytest.raises(LocoError) as caught:
        tiny_trainer(world, mine)
    assert not list(island_checkpoints(Path(settings["run_dir"]), world.island).glob("step-*"))
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model.layers": 3}, "settings.model.layers: 2 at island 0, 3 at island 1"),
        ({"seed": 7}, "settings.seed: 1234 at island 0, 7 at island 1"),
        ({"method.outer.lr": 0.5}, "settings.method.outer.lr: None at island 0, 0.5 at island 1"),
        ({"precision.parameters": "bf16"}, "settings.precision.parameters: fp32 at island 0, bf16 at island 1"),
    ],
)
def test_an_island_with_other_settings_is_refused_by_all(changes, named, tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    for ((kind, message),) in run_islands(start_with, settings, changes, 1, islands=2):
        assert kind == "IslandMismatch"
        assert named in message


def test_an_island_with_other_data_and_tokenizer_is_refused_by_all(tiny_data, tmp_path):
    (tmp_path / "other").mkdir()
    other = write_tiny_data(tmp_path / "other", seed=1)
    settings = settings_of(tiny_data, tmp_path / "run", **{"parallel.tensor": 1})
    for ((kind, message),) in run_islands(start_with, settings, other, 1, islands=2):
        assert kind == "IslandMismatch"
        assert "data.tokenizer" in message
        assert "data.sources.0.sha256" in message


def start_with_other_weights(world: World, settings: dict) -> str:
    import loco_train.islands.zero_engine as engine

    if world.island == 1:
        original = engine.initial_values
        engine.initial_values = lambda model, *, seed: original(model, seed=seed + 1)
    with pytest.raises(IslandMismatch) as caught:
        tiny_trainer(world, settings)
    return str(caught.value)


def test_other_initial_weights_are_refused_and_named(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    for (message,) in run_islands(start_with_other_weights, settings, islands=2):
        assert "initial weights" in message
        assert "linear_qkv.weight" in message


def refused(world: World, settings: dict) -> tuple[str, str]:
    with pytest.raises(LocoError) as caught:
        tiny_trainer(world, settings).run()
    return type(caught.value).__name__, str(caught.value)


def test_a_damaged_checkpoint_of_one_island_is_refused_by_all(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    run_islands(train, settings, islands=2)
    newest = sorted(island_checkpoints(tmp_path, 1).glob("step-*"))[-1]
    weights = newest / "rank-000.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    told = [island[0] for island in run_islands(refused, settings, islands=2)]
    # The launcher shows the cause, and knows the echo by its kind.
    assert [kind for kind, _ in told] == [FailedElsewhere.__name__, CheckpointError.__name__]
    assert all("rank-000.safetensors" in message for _, message in told)


def test_an_island_without_checkpoints_beside_one_with_is_refused(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    run_islands(train, settings, islands=2)
    island_checkpoints(tmp_path, 1).rename(tmp_path / "lost")
    for ((kind, message),) in run_islands(refused, settings, islands=2):
        assert kind == CheckpointError.__name__
        assert "island 0: 2, 3; island 1: none" in message


def test_a_changed_setting_is_refused_on_resume_by_name(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    run_ranks(train, settings, ranks=1)
    ((kind, message),) = run_ranks(refused, {**settings, "optimizer.lr": 0.5}, ranks=1)
    assert kind == CheckpointError.__name__
    assert "optimizer.lr: 0.0004 in the checkpoint, 0.5 now" in message


def test_a_finished_run_trains_nothing_when_started_again(tiny_data, tmp_path):
    settings = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1})
    first = run_ranks(train, settings, ranks=1)
    path = events_path(tmp_path, 0)
    before = path.read_text().count("StepDone")
    assert run_ranks(train, settings, ranks=1) == first
    assert path.read_text().count("StepDone") == before == ROUNDS * INNER_STEPS
    assert json.loads(path.read_text().splitlines()[-1])["type"] == "RunStarted"


def test_ids_beyond_the_vocabulary_and_another_tokenizer_are_refused(tiny_data, tmp_path):
    small = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1, "model.vocab_size": 200})
    ((kind, message),) = run_ranks(refused, small, ranks=1)
    assert (kind, "model.vocab_size" in message) == (DataError.__name__, True)
    (tmp_path / "other").mkdir()
    other = write_tiny_data(tmp_path / "other", seed=1)["data.tokenizer"]
    foreign = settings_of(tiny_data, tmp_path, **{"parallel.tensor": 1, "data.tokenizer": other})
    ((kind, message),) = run_ranks(refused, foreign, ranks=1)
    assert kind == DataError.__name__
    assert "tokenizer" in message
