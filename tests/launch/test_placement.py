import os
from pathlib import Path

import pytest

from loco_train.errors import EnvironmentProblem
from loco_train.launch.placement import island_variables, split_devices, visible_devices


def test_each_rank_gets_a_gpu_of_its_own() -> None:
    devices = [str(index) for index in range(8)]

    assert split_devices(devices, device="auto", islands=2, ranks=4) == ["0,1,2,3", "4,5,6,7"]
    assert split_devices(devices, device="cuda", islands=3, ranks=2) == ["0,1", "2,3", "4,5"]
    assert split_devices(["GPU-a", "GPU-b"], device="cuda", islands=2, ranks=1) == ["GPU-a", "GPU-b"]


def test_without_gpus_or_on_the_cpu_nothing_is_split() -> None:
    assert split_devices([], device="auto", islands=2, ranks=4) == [None, None]
    assert split_devices(["0"], device="cpu", islands=2, ranks=4) == [None, None]


@pytest.mark.parametrize(("device", "devices"), [("cuda", []), ("cuda", ["0"]), ("auto", ["0", "1", "2"])])
def test_too_few_gpus_are_refused(device: str, devices: list[str]) -> None:
    with pytest.raises(EnvironmentProblem, match=f"2 islands of 2 ranks need 4 GPUs.*\n  got: {len(devices)} GPUs"):
        split_devices(devices, device=device, islands=2, ranks=2)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, ["0", "1", "2"]), ("2,0", ["2", "0"]), ("", []), ("1,-1,0", ["1"]), ("GPU-a", ["GPU-a"])],
)
def test_visible_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, expected: list[str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'GPU 0: x\\n  MIG 1g Device 0: y\\nGPU 1: x\\nGPU 2: x\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert visible_devices({} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}) == expected


def test_no_devices_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert visible_devices({"CUDA_VISIBLE_DEVICES": "0,1"}) == []


def test_variables_of_an_island() -> None:
    outer = {"PATH": "/bin", "RANK": "3", "LOCAL_WORLD_SIZE": "4", "SLURM_JOB_ID": "9", "MASTER_ADDR": "node1"}

    found = island_variables(outer, all_ranks=10**6, devices="2,3")

    assert found == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "2,3",
    }
    assert island_variables({"OMP_NUM_THREADS": "5"}, all_ranks=1, devices=None)["OMP_NUM_THREADS"] == "5"
