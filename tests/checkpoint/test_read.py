"""Damage of every kind is found, named, and never passed over."""

import json
import shutil

import pytest

from loco_train.checkpoint import open_checkpoint, open_step, restore_checkpoint, select_checkpoints
from loco_train.checkpoint.manifest import FORMAT_VERSION, Manifest
from loco_train.checkpoint.steps import MANIFEST, POINTER, step_name
from loco_train.errors import CheckpointError
from loco_train.testing import run_ranks
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model, write_by_hand

MODEL = tiny_model(layers=1)
STEPS = (10, 20, 30)


@pytest.fixture
def checkpoints(tmp_path):
    """Three whole checkpoints of two ranks."""
    for step in STEPS:
        contents = cut(random_parameters(MODEL, seed=step), tensor=2, data=1)
        header = make_header(MODEL, step=step, tensor=2)
        write_by_hand(tmp_path, header, contents, {"config.yaml": b"name: synthetic\n"})
    return tmp_path


def flip_byte(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


def cut_file(path):
    path.write_bytes(path.read_bytes()[:-4])


DAMAGES = {
    "a byte of a tensor": (lambda f: flip_byte(f / "rank-001.safetensors", -5), "rank-001.* is damaged"),
    "a byte of a header": (lambda f: flip_byte(f / "rank-000.safetensors", 20), "rank-000.* is damaged"),
    "a byte of the configuration": (lambda f: flip_byte(f / "config.yaml", 2), "config.yaml is damaged"),
    "a cut file": (lambda f: cut_file(f / "rank-001.safetensors"), "rank-001.* has the wrong size"),
    "a missing file": (lambda f: (f / "rank-000.safetensors").unlink(), "rank-000.* is missing"),
    "a missing attachment": (lambda f: (f / "config.yaml").unlink(), "config.yaml is missing"),
    "a foreign file": (
        lambda f: shutil.copy(f / "rank-000.safetensors", f / "rank-002.safetensors"),
        "rank-002.* is foreign",
    ),
    "a rank's file of another step": (
        lambda f: shutil.copy(f.parent / step_name(10) / "rank-000.safetensors", f),
        "rank-000.* is damaged or belongs to another checkpoint",
    ),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "is no checkpoint: it has no manifest.json"),
    "a cut manifest": (lambda f: cut_file(f / MANIFEST), "is no manifest of a checkpoint"),
    "an empty manifest": (lambda f: (f / MANIFEST).write_text(""), "is no manifest of a checkpoint"),
    "a manifest that is not text": (lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe{"), "manifest.json is damaged"),
    "the manifest of another step": (
        lambda f: shutil.copy(f.parent / step_name(10) / MANIFEST, f),
        "holds the checkpoint of another step",
    ),
    "no folder": (shutil.rmtree, "step-00000030 does not exist"),
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_named_with_the_newest_older_whole_one(checkpoints, damage, problem):
    damage(checkpoints / step_name(30))
    flip_byte(checkpoints / step_name(20) / "rank-000.safetensors", -1)  # so 20 must not be recommended
    with pytest.raises(CheckpointError, match=problem) as caught:
        select_and_verify(checkpoints)
    assert "step 10: choose it with --step 10" in caught.value.fix
    select_and_verify(checkpoints, step=10)
    # The same by a resuming process that stands for rank 0; it does not read the file of rank 1.
    shards = cut(random_parameters(MODEL, seed=30), tensor=2, data=1)[0].shards
    config = make_header(MODEL, step=30, tensor=2).config
    if "rank-001.* is damaged" not in problem:
        with pytest.raises(CheckpointError, match=problem) as caught:
            restore_checkpoint(checkpoints, shards=shards, island=0, config=config)
        assert "step 10: choose it with --step 10" in caught.value.fix
    assert restore_checkpoint(checkpoints, shards=shards, island=0, config=config, step=10).header.step == 10


def select_and_verify(checkpoints, **arguments):
    select_checkpoints(checkpoints, **arguments).verify()


def test_each_digit_of_the_manifest_counts(checkpoints):
    path = checkpoints / step_name(30) / MANIFEST
    text = path.read_text()
    path.write_text(text.replace('"round": 3', '"round": 4'))
    with pytest.raises(CheckpointError, match="content does not match its own digest"):
        open_checkpoint(path.parent)


def test_another_format_version_is_refused_with_both_numbers(checkpoints):
    path = checkpoints / step_name(30) / MANIFEST
    document = {**json.loads(path.read_text()), "format_version": FORMAT_VERSION + 1}
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=rf"format version[^$]*got: {FORMAT_VERSION + 1}[^$]*allowed: 1"):
        open_checkpoint(path.parent)


def test_a_manifest_survives_its_text():
    contents = cut(random_parameters(MODEL, seed=0), tensor=2, data=1)
    manifest = Manifest(make_header(MODEL, step=3, tensor=2), ())
    assert Manifest.from_text(manifest.to_text(), where="here") == manifest
    assert contents[0].shards[0] == type(contents[0].shards[0]).from_json(
        json.loads(json.dumps(contents[0].shards[0].to_json()))
    )


def test_a_lost_pointer_is_not_a_fresh_start_and_a_damaged_one_is_told(checkpoints):
    (checkpoints / POINTER).unlink()
    assert open_step(checkpoints).manifest.header.step == 30
    (checkpoints / POINTER).write_bytes(b"st\xffp")
    with pytest.raises(CheckpointError, match=r"latest is damaged[^$]*10, 20, 30"):
        open_step(checkpoints)
    (checkpoints / POINTER).write_text("step-00000040\n")
    with pytest.raises(CheckpointError, match=r"step-00000040 does not exist[^$]*choose it with --step 30"):
        open_step(checkpoints)


def test_only_an_island_without_any_checkpoint_starts_afresh(tmp_path):
    assert open_step(tmp_path / "never") is None
    assert restore_checkpoint(tmp_path / "never", shards=(), island=0, config={}) is None
    with pytest.raises(CheckpointError, match=r"step-00000005 does not exist[^$]*no step at all"):
        open_step(tmp_path / "never", step=5)


def restore_error(world, folder, change):
    """The message of the error of this rank."""
    parameters = random_parameters(MODEL, seed=30)
    content = cut(parameters, tensor=2, data=1)[world.rank if change != "other shards" else 0]
    config = make_header(MODEL, step=30, tensor=2).config
    arguments = {"shards": content.shards, "island": 0, "config": config, "run_id": "run-a"}
    if change == "other island":
        arguments["island"] = 1
    if change == "other run":
        arguments["run_id"] = "run-b"
    if change == "other model":
        model = MODEL.model_copy(update={"rope_theta": 5.0, "layers": 3}).model_dump(mode="json")
        arguments["config"] = {**config, "model": model, "parallel": {"tensor": 2}, "extra": 1, "device": "cuda"}
    with pytest.raises(CheckpointError) as caught:
        restore_checkpoint(type(world.folder)(folder), **arguments)
    return caught.value.message()


def messages(folder, change):
    first, second = run_ranks(restore_error, str(folder), change)
    assert first == second
    return first


def test_damage_of_one_ranks_file_stops_all_ranks_with_the_way_out(checkpoints):
    flip_byte(checkpoints / step_name(30) / "rank-001.safetensors", -5)
    message = messages(checkpoints, "nothing")
    assert "failed on rank 1" in message
    assert "rank-001.safetensors is damaged" in message
    assert "the newest whole one before it is step 20: choose it with --step 20" in message


def test_other_settings_are_listed_with_both_values(checkpoints):
    message = messages(checkpoints, "other model")
    assert "model.rope_theta: 10000.0 in the checkpoint, 5.0 now" in message
    assert "model.layers: 1 in the checkpoint, 3 now" in message
    assert "parallel.data: 1 in the checkpoint, '(absent)' now" in message
    assert "extra: '(absent)' in the checkpoint, 1 now" in message
    assert "hidden_size" not in message
    assert "device" not in message  # where it runs is free to change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("other run", "belongs to another run (got: run-a; allowed: run-b)"),
        ("other island", "belongs to another island (got: 0; allowed: 1)"),
        ("other shards", "rank 1 saved other shards"),
    ],
)
def test_what_belongs_elsewhere_is_refused(checkpoints, change, expected):
    assert expected in messages(checkpoints, change)
