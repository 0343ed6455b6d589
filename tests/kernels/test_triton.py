"""Triton's forms in its interpreter, by the same tests: with the version that torch pins, and the oldest supported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ["3.7.1", "3.6.0"]
# At least so many in Triton's form: a search that finds nothing would pass.
TESTS = {"quantize": 60, "pseudo_gradient": 100, "outer_step": 80, "mix": 50, "block_select": 15, "newton_schulz": 100}


def environment(version: str, *, interpreted: bool) -> dict[str, str]:
    folder = ROOT / ".triton" / version
    assert (folder / "complete").is_file(), f"no {folder}\n  to do: tests/run.sh, which sets it up"
    # Before the import of a kernel: it decides what @triton.jit makes of it.
    choice = {"TRITON_INTERPRET": "1"} if interpreted else {"TRITON_CACHE_DIR": str(ROOT / ".triton/cache")}
    return {**os.environ, "PYTHONPATH": str(folder), **choice}


def run(command: list[str], variables: dict[str, str], *, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.timeout(420)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("operation", TESTS)
def test_in_the_interpreter(operation, version):
    command = [sys.executable, "-m", "pytest", "-q", "-k", "triton", f"tests/kernels/test_{operation}.py"]
    ended = run(command, environment(version, interpreted=True), timeout=400)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-1000:]
    passed = int(ended.stdout.split(" passed")[0].split()[-1])
    assert passed >= TESTS[operation]
    assert "skipped" not in ended.stdout


@pytest.mark.timeout(600)
def test_machine_code():
    """No spills, 128-bit accesses, tensor cores; and docs/kernels.md holds what the compiler says."""
    command = [sys.executable, "tools/kernel_code.py"]
    ended = run(command, environment(VERSIONS[0], interpreted=False), timeout=580)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]


@pytest.mark.parametrize("operation", TESTS)
def test_stays_inside_its_buffers(operation):
    ended = guarded(operation)
    assert ended.stdout == "all inside\n", (ended.returncode, ended.stderr[-2000:])


def test_the_guard_catches_an_access_outside():
    assert guarded("control").returncode == -signal.SIGSEGV


def guarded(operation: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tests/kernels/guarded.py", operation]
    return run(command, environment(VERSIONS[0], interpreted=True), timeout=170)
