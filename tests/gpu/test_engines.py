"""One GPU: ZeRO in bf16 under an NCCL default group, resume, and the inner optimizers that exist there."""

import os

import pytest
import torch

from loco_train.testing import World, run_islands
from loco_train.testing.runs import state_digests, tiny_trainer

SETTINGS = {"precision.parameters": "bf16", "rounds": 3, "method.inner_steps": 4, "network.backend": "gloo"}


class Stopped(Exception):
    """The test's way to end a process right after a save."""


def train(world: World, settings: dict, stop_at_step: int | None) -> dict[str, str]:
    # Atomics in backward passes would make two equal runs differ in the last bit.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    trainer = tiny_trainer(world, settings, device="cuda")
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
    trainer.engine.views.verify_copies()
    return state_digests(trainer)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_in_bf16_trains_and_resumes_bit_equal(stage, tiny_data, tmp_path):
    base = {**tiny_data, **SETTINGS, "parallel.zero_stage": stage, "checkpoint.every_steps": 2}

    def run(name: str, stop: int | None):
        return run_islands(train, {**base, "run_dir": str(tmp_path / name)}, stop, islands=1, backend="nccl")

    unbroken = run("unbroken", None)
    run("broken", 6)
    assert run("broken", None) == unbroken


@pytest.mark.parametrize("outer_state", ["device", "host"])
def test_two_islands_on_one_gpu_are_bit_equal_after_the_outer_step(outer_state, tiny_data, tmp_path):
    settings = {**tiny_data, **SETTINGS, "run_dir": str(tmp_path), "method.outer_state": outer_state}
    (first,), (second,) = run_islands(train, settings, None, islands=2, backend="nccl")
    shared = [key for key in first if key.partition("/")[0] in ("master", "base", "momentum")]
    assert shared
    assert {key: first[key] for key in shared} == {key: second[key] for key in shared}


def masters_after_training(world: World, settings: dict) -> dict[str, torch.Tensor]:
    trainer = tiny_trainer(world, settings, device="cuda")
    trainer.run()
    return {key: value.cpu() for key, value in trainer.engine.views.state().items() if key.startswith("master/")}


@pytest.mark.parametrize("implementation", ["deepspeed", "apex"])
def test_fused_optimizers_agree_with_torchs(implementation, tiny_data, tmp_path):
    if implementation == "apex":
        pytest.importorskip("apex.optimizers", reason="needs NVIDIA apex")
    base = {**tiny_data, "rounds": 1, "method.inner_steps": 3, "method.rule": "none", "method.mix2.peers": "nobody"}

    def run(name: str):
        settings = {**base, "run_dir": str(tmp_path / name), "optimizer.implementation": name}
        return run_islands(masters_after_training, settings, islands=1, backend="nccl", timeout_seconds=170)[0][0]

    expected, got = run("torch"), run(implementation)
    for key, value in expected.items():
        # Three steps of at most lr 4e-4, whose division and square root differ by a few ulp between implementations.
        torch.testing.assert_close(got[key], value, rtol=1e-6, atol=3 * 4e-4 * 1e-4)
