"""The tests of each operation fail when its kernel is broken on purpose, one line at a time."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_triton import ROOT, VERSIONS, environment, run

PACKAGE = ROOT / "kernels/loco_kernels"


@dataclass(frozen=True)
class Mutation:
    """operation: whose tests must see it. file: in the package. before, after: a line's part that occurs once."""

    operation: str
    file: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.after.strip()}"


MUTATIONS = [
    Mutation("quantize", "tiles.py", "most < _SMALLEST, 0.0", "most < 0.0, 0.0"),
    Mutation("quantize", "tiles.py", "(exact + _ROUNDING) - _ROUNDING", "exact"),
    Mutation("quantize", "tiles.py", "packed << 28) >> 28", "packed << 28) >> 27"),
    Mutation("quantize", "tiles.py", "tl.floor(exact + uniform(at, key))", "tl.floor(exact + 0.5)"),
    Mutation("quantize", "tiles.py", "bad_low + bad_high > 0", "bad_low > 0"),
    Mutation("pseudo_gradient", "pseudo_gradient/triton.py", "load(base, high_at, n, whole) - ", "-"),
    Mutation("pseudo_gradient", "pseudo_gradient/triton.py", "low - sent_low", "low"),
    Mutation("pseudo_gradient", "pseudo_gradient/triton.py", "non_finite(sent_low) + ", ""),
    Mutation("pseudo_gradient", "pseudo_gradient/triton.py", "sent_low * sent_low + ", "low * low + "),
    Mutation("outer_step", "outer_step/triton.py", "g + coefficient * v)", "coefficient * v)"),
    Mutation("outer_step", "outer_step/triton.py", "low += next_low", "low = next_low"),
    Mutation("outer_step", "outer_step/triton.py", "store(copy, at, x", "store(copy, at, v"),
    Mutation("outer_step", "outer_step/triton.py", "row * scale_stride", "0 * scale_stride"),
    Mutation("mix", "mix/triton.py", "high += weight * high_term", "high += high_term"),
    Mutation("mix", "mix/triton.py", "else torch.empty_like(out)", "else out"),
    Mutation("block_select", "block_select/triton.py", "at < tl.cdiv(length, _GROUP) * _GROUP", "at < length"),
    Mutation("block_select", "block_select/triton.py", "mask=at < length), mask=at < length", "mask=at < length)"),
    Mutation("block_select", "block_select/triton.py", "value * value", "value"),
    Mutation("newton_schulz", "newton_schulz/triton.py", "if INNER % DEPTH != 0:", "if INNER < 0:"),
    Mutation("newton_schulz", "newton_schulz/triton.py", "if row_tile != column_tile:", "if row_tile < column_tile:"),
    Mutation("newton_schulz", "newton_schulz/triton.py", "start = matrix * rows * rows", "start = matrix * rows"),
    Mutation("newton_schulz", "newton_schulz/triton.py", "first + corner_column", "corner_column"),
    Mutation("newton_schulz", "newton_schulz/eager.py", "product(product(once, gram), once)", "product(once, gram)"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_is_seen(mutation, tmp_path):
    file = copied(tmp_path) / mutation.file
    source = file.read_text()
    assert source.count(mutation.before) == 1, mutation
    file.write_text(source.replace(mutation.before, mutation.after))
    ended = outcome(mutation.operation, tmp_path)
    # Failed, and not for want of something to run.
    assert ended.returncode == 1, ended.stdout[-1000:]
    assert re.search(r"\b1 failed", ended.stdout), ended.stdout[-1000:]


def test_a_copy_that_is_whole_passes(tmp_path):
    copied(tmp_path)
    assert outcome("mix", tmp_path).returncode == 0


def copied(folder: Path) -> Path:
    target = folder / "loco_kernels"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def outcome(operation: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The operation's tests in the interpreter, on the package in `folder`."""
    variables = environment(VERSIONS[0], interpreted=True)
    variables["PYTHONPATH"] = f"{folder}:{variables['PYTHONPATH']}"
    test = f"tests/kernels/test_{operation}.py"
    return run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-k", "triton", "-p", "no:cacheprovider", test],
        variables,
        timeout=170,
    )
