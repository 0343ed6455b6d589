"""The program as a user runs it: launch, evaluate, export, inspect, sample; and what bad input gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from loco_train.testing.tiny import tiny_run


def loco(*arguments: str, folder: Path, timeout_seconds: float = 150) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loco_train.cli.main", *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )


def as_json(*arguments: str, folder: Path):
    done = loco(*arguments, "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_run(folder: Path, tiny_data: dict, **changes) -> str:
    config = tiny_run(
        {
            **tiny_data,
            "run_dir": "runs/it's a run",
            "rounds": 2,
            "method.inner_steps": 2,
            "islands.count": 2,
            "parallel.tensor": 2,
            "network.exchange_timeout": "30s",
            **changes,
        }
    )
    (folder / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return "run.yaml"


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    """A folder with a finished run of two islands with tensor parallel 2, and what the launcher printed."""
    folder = tmp_path_factory.mktemp("program")
    run = write_run(folder, tiny_data)
    return folder, as_json("launch", "local", "--run", run, folder=folder)


def test_launch_tells_what_each_island_did(trained):
    folder, summary = trained
    assert summary["exit_code"] == 0
    assert [island["rounds"] for island in summary["islands"]] == [2, 2]
    for island in summary["islands"]:
        assert island["consensus_loss_after"] < island["consensus_loss_before"]
        assert island["bytes_sent"] > 0
    assert (folder / "runs/it's a run/logs/island-1.log").is_file()


def test_eval_finds_the_trainers_loss_for_consensus_and_islands(trained):
    folder, summary = trained
    found = as_json("eval", "runs/it's a run", folder=folder)
    losses = {model["model"]: model["loss"] for model in found["models"]}
    assert set(losses) == {"consensus", "island 0", "island 1"}
    # fp32 in one process against tensor parallel 2: sums in another order.
    assert losses["consensus"] == pytest.approx(summary["islands"][0]["consensus_loss_after"], abs=1e-5)
    assert losses["island 0"] == losses["island 1"] == losses["consensus"]


def test_export_inspect_and_sample_read_the_run(trained):
    folder, _ = trained
    exported = as_json("export", "runs/it's a run", "exported", folder=folder)
    assert (folder / "exported/config.json").is_file()
    assert exported["step"] == 4
    shown = as_json("inspect", "runs/it's a run", folder=folder)
    assert "decoder.layers.1.mlp.linear_fc2.weight" in json.dumps(shown)
    sampled = as_json("sample", "exported", "the island", "--new-tokens", "8", folder=folder)
    again = as_json("sample", "exported", "the island", "--new-tokens", "8", folder=folder)
    assert sampled["samples"][0]["prompt"] == "the island"
    assert sampled == again


def test_the_same_command_again_trains_nothing_and_ends_well(trained):
    folder, summary = trained
    again = as_json("launch", "local", "--run", "run.yaml", folder=folder)
    assert [i["steps"] for i in again["islands"]] == [i["steps"] for i in summary["islands"]] == [4, 4]


def test_the_folder_of_another_run_is_refused_and_left_as_it_is(trained):
    folder, _ = trained
    before = sorted(p for p in (folder / "runs").rglob("*"))
    done = loco("launch", "local", "--run", "run.yaml", "optimizer.lr=0.5", folder=folder)
    assert done.returncode == 2
    assert "optimizer.lr: 0.0004 there, 0.5 now" in done.stderr
    assert sorted(p for p in (folder / "runs").rglob("*")) == before


BAD = {
    "an unknown key": (["optimizer.lrr=1"], 2, "did you mean optimizer.lr?"),
    "pipeline with ZeRO 2": (["parallel.pipeline=2", "parallel.zero_stage=2"], 2, "parallel.zero_stage=1"),
    "heads not divisible": (["parallel.tensor=3"], 2, "model.attention_heads (4) must be a multiple"),
    "no such data": (["data.train.0.path=nowhere"], 3, "nowhere"),
    "a GPU that is not there": (["device=cuda"], 5, "GPU"),
    "too few held-out sequences": (["evaluation.sequences=200000"], 3, "too few held-out sequences"),
    "an interface that is not there": (["network.interface=nope0"], 5, "network.interface 'nope0'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_message_and_its_exit_code(case, tiny_data, tmp_path):
    overrides, exit_code, message = BAD[case]
    run = write_run(tmp_path, tiny_data, **{"parallel.tensor": 1})
    done = loco("launch", "local", "--run", run, *overrides, folder=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("step-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system that fills up needs root")
def test_a_full_disk_while_saving_ends_the_run_with_a_message_and_keeps_what_was_whole(tiny_data, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1700k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        run = write_run(tmp_path, tiny_data, **{"run_dir": str(small / "run"), "islands.count": 1, "rounds": 6})
        done = loco("launch", "local", "--run", run, "checkpoint.keep_last=6", folder=tmp_path)
        assert done.returncode == 4, done.stderr
        assert "space" in done.stderr
        assert "Traceback" not in done.stderr
        kept = as_json("inspect", str(small / "run"), folder=tmp_path)
        assert kept
        assert not list(small.rglob(".step-*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
