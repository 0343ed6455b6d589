"""Who may import whom: lower parts never import higher ones, and each heavy package has one door."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From low to high. Parts of one layer do not import each other where that is said below.
LAYERS = [
    {"errors", "units", "assets", "json_text", "blocks", "files", "graphs"},
    {"shards"},
    {"config"},
    {"telemetry"},
    {"outer", "transport", "data", "checkpoint"},
    {"islands", "conversion"},
    {"training", "launch", "planning", "simulation"},
    {"assembly"},
    {"study"},
    {"cli"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
STRANGERS = LAYERS[4]

# Package -> parts that may import it.
DOORS = {
    "deepspeed": {"islands"},
    "megatron": {"islands", "conversion", "data"},
    "sentencepiece": {"data"},
    "transformers": {"conversion"},
    "apex": {"islands"},
    "triton": set(),
    "torch": set(LEVEL) - LAYERS[0] - {"shards", "config", "launch", "planning"},
}


def imported_names(path: Path) -> Iterator[str]:
    """Every module that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    """errors, config, cli …; empty for the package's own __init__."""
    first = path.relative_to(ROOT / "loco_train").parts[0]
    return first.removesuffix(".py").removeprefix("__init__")


# Tests' own helpers may use everything, and nothing uses them.
SOURCES = [
    p for p in sorted((ROOT / "loco_train").rglob("*.py")) if part_of(p) != "testing" and "_share" not in p.parts
]
EDGES = {
    (path, name.split(".")[1])
    for path in SOURCES
    for name in imported_names(path)
    if name.startswith("loco_train.") and name.split(".")[1] in {*LEVEL, "testing"}
}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_part_has_its_layer():
    assert {part_of(path) for path in SOURCES} - {""} <= set(LEVEL)
    assert len(EDGES) > 50  # the search itself finds something


def test_lower_parts_never_import_higher_ones():
    wrong = {
        f"{shown(path)} imports {part}"
        for path, part in EDGES
        if part == "testing" or LEVEL[part] > LEVEL.get(part_of(path), len(LAYERS))
    }
    assert not wrong


def test_parts_that_only_assembly_brings_together_do_not_know_each_other():
    wrong = {
        f"{shown(path)} imports {part}"
        for path, part in EDGES
        if {part, part_of(path)} <= STRANGERS and part != part_of(path)
    }
    assert not wrong


@pytest.mark.parametrize("package", DOORS)
def test_each_heavy_package_has_its_door(package):
    wrong = {
        shown(path)
        for path in SOURCES
        if part_of(path) not in DOORS[package] and package in {name.split(".")[0] for name in imported_names(path)}
    }
    # The launcher's rendezvous process and the commands that need torch import it when they run, not before.
    assert not wrong


def test_kernels_know_nothing_of_the_trainer():
    paths = sorted((ROOT / "kernels").rglob("*.py"))
    assert paths
    assert not [shown(p) for p in paths if any(n.split(".")[0] == "loco_train" for n in imported_names(p))]


# A login node: torch and all that needs it are not there.
WITHOUT_TORCH = """
import sys
for name in ("torch", "deepspeed", "megatron", "transformers", "sentencepiece", "pyarrow", "tensorboard"):
    sys.modules[name] = None
from loco_train.cli.main import main
sys.argv = ["loco", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "islands of compute"),
        (["launch", "local", "--help"], "--islands"),
        (["config", "list"], "llama-7b"),
        (["config", "show", "quickstart", "rounds=3"], "rounds: 3  # override"),
        (["train", "--help"], "--run"),
        (["data", "--help"], "tokenizer"),
        (["inspect", "--help"], "checkpoint"),
    ],
)
def test_help_and_settings_work_without_torch(arguments, expected, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


HELP = """
import runpy, sys, time
sys.argv = ["loco", "--help"]
try:
    runpy.run_module("loco_train.cli.main", run_name="__main__")
except SystemExit:
    print(time.process_time(), file=sys.stderr)
"""


def test_help_takes_less_than_a_second(tmp_path):
    # Processor time of the best of three: the machine may be busy with other things.
    command = [sys.executable, "-c", HELP]
    runs = [subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True) for _ in range(3)]
    assert min(float(run.stderr) for run in runs) < 1
