"""How a user names a checkpoint."""

import shutil

import pytest

from loco_train.checkpoint import common_points, island_checkpoints, point_to, select_checkpoints
from loco_train.checkpoint.steps import step_name
from loco_train.errors import CheckpointError
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model, write_by_hand, write_run

MODEL = tiny_model(layers=1)


@pytest.fixture
def run(tmp_path):
    """Three islands with steps 10 and 20; island 1 is ahead with 30."""
    run_dir = tmp_path / "run"
    write_run(run_dir, MODEL, islands=3, steps=(10, 20), tensor=1)
    ahead = make_header(MODEL, step=30, island=1, islands=3)
    write_by_hand(island_checkpoints(run_dir, 1), ahead, cut(random_parameters(MODEL, seed=0), tensor=1, data=1))
    return run_dir


def chosen(selection):
    return [(c.manifest.header.island, c.manifest.header.step) for c in selection.checkpoints]


def test_a_run_is_its_newest_step_common_to_all_islands(run):
    assert common_points(run) == ((10,) * 3, (20,) * 3)
    selection = select_checkpoints(run)
    assert chosen(selection) == [(0, 20), (1, 20), (2, 20)]
    assert chosen(select_checkpoints(f"{run}@10")) == [(0, 10), (1, 10), (2, 10)]
    assert chosen(select_checkpoints(run, step=10)) == [(0, 10), (1, 10), (2, 10)]


def test_islands_with_unequal_inner_steps_meet_at_the_ends_of_rounds(tmp_path):
    for island, steps in ((0, 4), (1, 2)):
        for round in (1, 2):
            header = make_header(MODEL, step=steps * round, island=island, islands=2, round=round, steps_into_round=0)
            contents = cut(random_parameters(MODEL, seed=0), tensor=1, data=1)
            write_by_hand(island_checkpoints(tmp_path, island), header, contents)
    # Both have a step 4, of different rounds.
    assert common_points(tmp_path) == ((4, 2), (8, 4))
    assert chosen(select_checkpoints(tmp_path)) == [(0, 8), (1, 4)]
    assert chosen(select_checkpoints(tmp_path, step=4)) == [(0, 4), (1, 2)]


def test_an_island_is_its_own_newest_step(run):
    for name in (run / "islands/1", run / "islands/1/checkpoints"):
        assert chosen(select_checkpoints(name)) == [(1, 30)]
    assert chosen(select_checkpoints(f"{run}/islands/1@20")) == [(1, 20)]
    assert chosen(select_checkpoints(run, island=1)) == [(1, 30)]


def test_a_checkpoint_folder_is_itself(run):
    folder = island_checkpoints(run, 2) / step_name(10)
    assert chosen(select_checkpoints(folder)) == [(2, 10)]
    assert chosen(select_checkpoints(folder, step=10)) == [(2, 10)]
    with pytest.raises(CheckpointError, match="is of another step"):
        select_checkpoints(folder, step=20)


def test_a_future_that_one_island_gave_up_is_not_common(run):
    point_to(island_checkpoints(run, 2), 10)
    assert common_points(run) == ((10,) * 3,)


def test_the_same_step_before_and_after_an_outer_step_is_not_common(run):
    checkpoints = island_checkpoints(run, 2)
    shutil.rmtree(checkpoints / step_name(20))
    before_outer = make_header(MODEL, step=20, island=2, islands=3, round=1, steps_into_round=10)
    write_by_hand(checkpoints, before_outer, cut(random_parameters(MODEL, seed=0), tensor=1, data=1))
    assert common_points(run) == ((10,) * 3,)
    assert chosen(select_checkpoints(run)) == [(0, 10), (1, 10), (2, 10)]
    with pytest.raises(CheckpointError, match=r"different rounds[^$]*island 1: 2, island 2: 1"):
        select_checkpoints(run, step=20)


def test_a_path_may_contain_an_at_sign(run, tmp_path):
    odd = tmp_path / "run@2"
    shutil.copytree(run, odd)
    assert chosen(select_checkpoints(odd))[0] == (0, 20)
    assert chosen(select_checkpoints(f"{odd}@10"))[0] == (0, 10)


def test_each_wrong_name_has_its_own_message(run, tmp_path):
    (tmp_path / "empty").mkdir()
    cases = (
        (tmp_path / "nowhere", {}, r"no checkpoint in[^$]*nowhere does not exist"),
        (tmp_path / "empty", {}, r"no checkpoint in[^$]*a run folder"),
        (run, {"step": 30}, "step-00000030 does not exist"),
        (run, {"island": 7}, r"no island 7[^$]*0, 1, 2"),
        (run / "islands/1", {"island": 1}, "not the folder of a run"),
        (f"{run}@10", {"step": 20}, "two steps were named"),
    )
    for name, arguments, match in cases:
        with pytest.raises(CheckpointError, match=match):
            select_checkpoints(name, **arguments)


def test_a_damaged_newest_is_refused_not_skipped(run):
    (island_checkpoints(run, 2) / step_name(20) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no manifest.json[^$]*choose it with --step 10"):
        select_checkpoints(run)
    assert chosen(select_checkpoints(run, step=10))[2] == (2, 10)


def test_a_missing_or_foreign_island_is_named(run, tmp_path):
    partial = tmp_path / "partial"
    shutil.copytree(run, partial)
    shutil.rmtree(partial / "islands/2")
    with pytest.raises(CheckpointError, match=r"every island[^$]*islands 0, 1\b[^$]*islands 0 to 2"):
        select_checkpoints(partial)
    foreign = island_checkpoints(run, 2)
    shutil.rmtree(foreign)
    header = make_header(MODEL, step=20, island=2, islands=3, run_id="run-b")
    write_by_hand(foreign, header, cut(random_parameters(MODEL, seed=0), tensor=1, data=1))
    with pytest.raises(CheckpointError, match=r"mixes islands of different runs[^$]*island 2: run-b"):
        select_checkpoints(run)
    shutil.rmtree(foreign)
    with pytest.raises(CheckpointError, match=r"no step that all islands saved[^$]*island 2: none"):
        select_checkpoints(run)
