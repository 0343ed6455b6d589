"""Collective saving on real ranks: whole or not at all, and the same error on every rank."""

import os
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from loco_train.checkpoint import IslandParameters, open_step, restore_checkpoint, save_checkpoint
from loco_train.checkpoint.steps import POINTER, step_name
from loco_train.checkpoint.write import RankContent
from loco_train.errors import CheckpointError
from loco_train.files import hash_file
from loco_train.shards import Partition, Shard
from loco_train.testing import World, run_ranks
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model

MODEL = tiny_model(layers=1)


def save(world: World, folder: str, step: int, seed: int = 0, **changes: object) -> str:
    contents = cut(random_parameters(MODEL, seed=seed), tensor=2, data=world.ranks // 2)
    header = make_header(MODEL, step=step, tensor=2, data=world.ranks // 2, **changes)
    attachments = {"config.yaml": b"name: synthetic\n", "tokenizer.model": b"\x00\x01"}
    path = save_checkpoint(Path(folder), header=header, content=contents[world.rank], attachments=attachments)
    return str(path)


def save_and_restore(world: World, folder: str) -> list[bool]:
    save(world, folder, step=10, seed=1)
    content = cut(random_parameters(MODEL, seed=1), tensor=2, data=world.ranks // 2)[world.rank]
    config = make_header(MODEL, step=0, tensor=2, data=world.ranks // 2).config
    state = restore_checkpoint(Path(folder), shards=content.shards, island=0, config=config, run_id="run-a")
    assert state is not None
    assert (state.header.step, state.header.round, state.scalars) == (10, 1, {"step": 7.0})
    assert set(state.tensors) == set(content.tensors)
    return [torch.equal(state.tensors[key], content.tensors[key]) for key in content.tensors]


def error_of(world: World, action: str, folder: str) -> tuple[str, str | None]:
    """The problem and the fix of the CheckpointError that this rank raises."""
    try:
        ACTIONS[action](world, folder)
    except CheckpointError as error:
        return error.problem, error.fix
    raise AssertionError(f"{action} went through on rank {world.rank}")


def save_with_one_rank_limited(world: World, folder: str) -> None:
    # A file size limit on rank 1 alone stands for a quota: the system refuses the write in its middle.
    if world.rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        save(world, folder, step=20)
    finally:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def save_with_an_incomplete_rank(world: World, folder: str) -> None:
    content = cut(random_parameters(MODEL, seed=0), tensor=2, data=1)[world.rank]
    if world.rank == 1:
        content = RankContent(content.shards, dict(list(content.tensors.items())[:5]), content.scalars)
    save_checkpoint(Path(folder), header=make_header(MODEL, step=20, tensor=2), content=content)


def save_at_different_steps(world: World, folder: str) -> None:
    save(world, folder, step=20 + world.rank)


def save_where_it_is_full(world: World, folder: str) -> None:
    # The check beforehand is switched off by lying to it: what the disk itself says must be enough.
    shutil.disk_usage = lambda path: shutil._ntuple_diskusage(2**60, 0, 2**60)
    save(world, folder, step=20)


def save_at_step_20(world: World, folder: str) -> None:
    save(world, folder, step=20)


ACTIONS = {f.__name__: f for f in (
    save_with_one_rank_limited, save_with_an_incomplete_rank, save_at_different_steps, save_where_it_is_full,
    save_at_step_20,
)}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_gets_its_tensors_back(tmp_path, ranks):
    assert all(all(equal) for equal in run_ranks(save_and_restore, str(tmp_path), ranks=ranks))
    folder = tmp_path / step_name(10)
    assert sorted(f.name for f in folder.iterdir()) == sorted(
        ["config.yaml", "manifest.json", "tokenizer.model", *[f"rank-{r:03d}.safetensors" for r in range(ranks)]]
    )
    assert (tmp_path / POINTER).read_text() == "step-00000010\n"
    # What ranks saved together is, put together again, the parameters that were cut.
    checkpoint = open_step(tmp_path)
    checkpoint.verify()
    assert checkpoint.attachment("config.yaml") == b"name: synthetic\n"
    whole = IslandParameters(checkpoint)
    for name, value in random_parameters(MODEL, seed=1).items():
        assert torch.equal(whole.read(name), value), name


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("save_with_one_rank_limited", "failed on rank 1: .*File too large"),
        ("save_with_an_incomplete_rank", "failed on rank 1: [0-9]+ tensors are missing, the first of them master/"),
        ("save_at_different_steps", "ranks 0 and 1 are not at the same place.*step: 20 and 21"),
    ],
)
def test_a_failure_on_one_rank_is_the_same_error_on_all_and_leaves_everything_as_it_was(tmp_path, action, reason):
    run_ranks(save, str(tmp_path), 10)
    before = snapshot(tmp_path)
    first, second = run_ranks(error_of, action, str(tmp_path))
    assert first == second
    assert re.search(reason, first[0]), first[0]
    assert snapshot(tmp_path) == before


def test_a_full_disk_is_told_by_all_ranks_and_the_last_checkpoint_stays(small_disk):
    run_ranks(save, str(small_disk), 10)
    before = snapshot(small_disk)
    first, second = run_ranks(error_of, "save_where_it_is_full", str(small_disk))
    assert first == second
    assert "No space left on device" in first[0]
    assert "free space" in first[1]
    assert snapshot(small_disk) == before


def test_too_little_space_is_noticed_before_writing(small_disk):
    run_ranks(save, str(small_disk), 10)
    before = snapshot(small_disk)
    first, second = run_ranks(error_of, "save_at_step_20", str(small_disk))
    assert first == second
    assert "no space for a checkpoint" in first[0]
    assert "kB free" in first[0] or "MB free" in first[0]
    assert snapshot(small_disk) == before


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    run_ranks(save, str(tmp_path), 10, 1)
    run_ranks(save, str(tmp_path), 10, 2)
    whole = IslandParameters(open_step(tmp_path))
    expected = random_parameters(MODEL, seed=2)
    assert all(torch.equal(whole.read(name), value) for name, value in expected.items())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [POINTER, step_name(10)]


def test_one_process_without_a_group_can_save_and_restore(tmp_path):
    contents = cut(random_parameters(MODEL, seed=0), tensor=1, data=1)
    header = make_header(MODEL, step=30)
    save_checkpoint(tmp_path, header=header, content=contents[0])
    state = restore_checkpoint(tmp_path, shards=contents[0].shards, island=0, config=header.config)
    assert state.header == header


def test_a_tensor_that_no_shard_claims_is_refused():
    shard = Shard("decoder.final_layernorm.weight", (8,), Partition(), 0, 8)
    good = {"master/decoder.final_layernorm.weight": torch.zeros(8)}
    RankContent([shard], good, {}).check()
    for key, tensor, match in (
        ("exp_avg/other", torch.zeros(8), "belongs to no shard that this rank holds"),
        ("exp_avg/decoder.final_layernorm.weight", torch.zeros(7), "does not fit its shard"),
    ):
        with pytest.raises(CheckpointError, match=match):
            RankContent([shard], {**good, key: tensor}, {}).check()


def test_views_into_one_buffer_are_saved_each_by_itself(tmp_path):
    # Engines give views of one flat buffer; safetensors must write each view's own elements only.
    buffer = torch.arange(300.0)
    names = ["a", "b", "c"]
    shards = tuple(Shard(name, (100,), Partition(), 0, 100) for name in names)
    tensors = {f"master/{name}": buffer[100 * i : 100 * (i + 1)] for i, name in enumerate(names)}
    save_checkpoint(tmp_path, header=make_header(MODEL, step=1), content=RankContent(shards, tensors, {}))
    state = restore_checkpoint(tmp_path, shards=shards, island=0, config=make_header(MODEL, step=1).config)
    assert all(torch.equal(state.tensors[key], tensor) for key, tensor in tensors.items())
    assert (tmp_path / step_name(1) / "rank-000.safetensors").stat().st_size < 300 * 4 + 1000


def snapshot(folder: Path) -> dict[str, str]:
    """Everything below `folder`, files with their hashes; a leftover or a changed byte shows."""
    return {str(f.relative_to(folder)): hash_file(f) if f.is_file() else "" for f in sorted(folder.rglob("*"))}


@pytest.fixture
def small_disk(tmp_path):
    """A real file system with room for one checkpoint and a half."""
    one_bytes = sum(c.size_bytes for c in cut(random_parameters(MODEL, seed=0), tensor=2, data=1))
    mount = tmp_path / "small"
    mount.mkdir()
    size = f"size={int(one_bytes * 1.5)}"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root with the right to mount")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)
