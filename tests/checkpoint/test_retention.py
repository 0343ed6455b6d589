"""Keep-last-n, and what a killed process left behind."""

import pytest

from loco_train.checkpoint import clean_stale, committed_steps, open_step, point_to, retain
from loco_train.checkpoint.steps import list_steps, newest_step, step_name
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model, write_by_hand

MODEL = tiny_model(layers=1)


@pytest.fixture
def checkpoints(tmp_path):
    for step in (10, 20, 30, 40):
        contents = cut(random_parameters(MODEL, seed=step), tensor=1, data=1)
        write_by_hand(tmp_path, make_header(MODEL, step=step), contents)
    return tmp_path


def test_the_newest_are_kept(checkpoints):
    assert retain(checkpoints, keep_last=2) == [10, 20]
    assert list_steps(checkpoints) == (30, 40)
    assert retain(checkpoints, keep_last=2) == []
    open_step(checkpoints).verify()


def test_what_the_islands_may_have_to_go_back_to_stays(tmp_path):
    """Steps 10 and 20 end rounds 1 and 2; 22 to 28 are inside round 2. Another island has saved round 1 only."""
    for step in (5, 10, 20, 22, 24, 26, 28):
        contents = cut(random_parameters(MODEL, seed=step), tensor=1, data=1)
        write_by_hand(tmp_path, make_header(MODEL, step=step), contents)
    assert retain(tmp_path, keep_last=2, common_round=1) == [5, 20, 22, 24]
    assert list_steps(tmp_path) == (10, 26, 28)
    assert retain(tmp_path, keep_last=2, common_round=2) == [10]


def test_nothing_is_known_of_the_other_islands(checkpoints):
    assert retain(checkpoints, keep_last=2, common_round=-1) == []


def test_a_round_that_was_not_saved(checkpoints):
    (checkpoints / step_name(30)).rename(checkpoints / "elsewhere")
    assert retain(checkpoints, keep_last=1, common_round=3) == [10]
    assert list_steps(checkpoints) == (20, 40)


def test_steps_above_the_pointer_are_a_future_that_was_given_up(checkpoints):
    point_to(checkpoints, 20)
    assert newest_step(checkpoints) == 20
    assert committed_steps(checkpoints) == (10, 20)
    assert open_step(checkpoints).manifest.header.step == 20
    # Until the next save nothing is lost; then they go, so that no island finds them as a common step.
    assert list_steps(checkpoints) == (10, 20, 30, 40)
    assert retain(checkpoints, keep_last=2) == [30, 40]
    assert list_steps(checkpoints) == (10, 20)


def test_the_pointers_target_is_never_removed(checkpoints):
    point_to(checkpoints, 10)
    retain(checkpoints, keep_last=1)
    assert list_steps(checkpoints) == (10,)
    with pytest.raises(ValueError, match="keep_last must be at least 1"):
        retain(checkpoints, keep_last=0)
    assert list_steps(checkpoints) == (10,)


def test_what_cannot_be_removed_stays_and_is_told(checkpoints, caplog, monkeypatch):
    def refuse(source, target):
        raise PermissionError(13, "Permission denied", str(source))

    monkeypatch.setattr("os.rename", refuse)
    assert retain(checkpoints, keep_last=3) == []
    assert "cannot remove the checkpoint" in caplog.text
    assert "step-00000010" in caplog.text
    monkeypatch.undo()
    assert retain(checkpoints, keep_last=3) == [10]


def test_leftovers_go_and_everything_else_stays(checkpoints):
    for name in (".step-00000050.tmp-0a1b2c3d", ".step-00000010.removed"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "rank-000.safetensors").write_bytes(b"half")
    (checkpoints / ".latest.tmp-00ff00ff").write_text("step-")
    (checkpoints / "notes.txt").write_text("mine")
    (checkpoints / ".nfs0001").write_text("theirs")
    assert clean_stale(checkpoints) == [
        ".latest.tmp-00ff00ff",
        ".step-00000010.removed",
        ".step-00000050.tmp-0a1b2c3d",
    ]
    assert sorted(e.name for e in checkpoints.iterdir()) == [
        ".nfs0001", "latest", "notes.txt", *[step_name(s) for s in (10, 20, 30, 40)],
    ]  # fmt: skip
    assert clean_stale(checkpoints / "never") == []


def test_a_checkpoint_that_was_being_replaced_comes_back(checkpoints):
    target = checkpoints / step_name(40)
    target.rename(checkpoints / ".step-00000040.replaced")
    clean_stale(checkpoints)
    open_step(checkpoints).verify()
    # Where the new one has arrived, the old one goes.
    (checkpoints / ".step-00000040.replaced").mkdir()
    assert clean_stale(checkpoints) == [".step-00000040.replaced"]
    open_step(checkpoints).verify()
