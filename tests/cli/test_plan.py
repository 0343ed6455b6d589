"""loco plan as a program, on a login node without torch."""

import json
import subprocess
import sys

import pytest

PAPER = ["--params", "1.5e9", "--islands", "8", "--inner-steps", "100", "--step-seconds", "4.72"]
PROGRAM = """
import sys
for name in ("torch", "deepspeed", "megatron", "transformers", "triton"):
    sys.modules[name] = None
from loco_train.cli.main import main
sys.argv = ["loco", "plan", *sys.argv[1:]]
main()
"""


def plan(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_rows_are_the_papers():
    rows = json.loads(plan(*PAPER, "--bandwidth", "100Mbps", "--wire", "fp32", "--json").stdout)
    by_method = {row["method"]: row for row in rows}
    # arXiv 2606.22768, Table 1.
    table = {
        "diloco": 36, "factored-local-m1m2": 49, "factored-global-m1": 56, "factored-global-m1-local-m2": 36,
        "factored-global-m1-local-m2-subset": 45, "factored-global-m1s": 28,
    }  # fmt: skip
    for method, paper in table.items():
        assert 100 * by_method[method]["utilization"] == pytest.approx(paper, abs=1)
    assert by_method["data-parallel"]["utilization"] < 0.01
    assert by_method["diloco"]["bytes_per_round"] == 2 * 7 / 8 * 4 * 1.5e9
    assert by_method["diloco"]["round_seconds"] == pytest.approx(100 * 4.72 + 840)
    assert [row["method"] for row in rows if row["recommended"]] == ["factored-global-m1-local-m2-subset"]
    assert [row["utilization"] for row in rows] == sorted((row["utilization"] for row in rows), reverse=True)


def test_the_table_is_whole_and_says_why():
    shown = plan(*PAPER, "--bandwidth", "0.2 Gbit/s").stdout
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if "%" in line}
    assert rows["diloco"][1:4] == ["52.9%", "892", "s"]
    assert rows["factored-global-m1s-local-m2-subset"][1] == "50.0%"  # the paper: 50
    assert "* recommended: factored-global-m1-local-m2-subset" in shown
    assert "less is better" in shown


def test_a_named_model_and_its_flops():
    arguments = [
        "--model",
        "llama-1.5b",
        "--flops",
        "1e15",
        "--mfu",
        "0.5",
        "--gpus",
        "8",
        "--tokens-per-step",
        "65536",
    ]
    (row,) = json.loads(plan(*arguments, "--bandwidth", "1Gbps", "--method", "diloco", "--json").stdout)
    # 6 FLOPs a parameter and token, of 1.5e9.
    assert row["round_seconds"] * row["utilization"] == pytest.approx(100 * 6 * 1.5e9 * 65536 / 4e15, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bandwidth", "0Mbps"], "--bandwidth must be above 0"),
        (["--bandwidth", "100"], "--bandwidth has no unit"),
        (["--bandwidth", "fast"], "--bandwidth is no rate"),
        (["--bandwidth", "100Mbps", "--wire", "fp8"], "--wire is no format"),
        (["--bandwidth", "100Mbps", "--flops", "1e15"], "the time of an inner step comes from one place"),
        (["--bandwidth", "100Mbps", "--tokens", "1e12"], "--tokens needs --tokens-per-step"),
        (["--bandwidth", "100Mbps", "--subset", "1.5"], "--subset is no share"),
        (["--bandwidth", "100Mbps", "--method", "dilocoo"], "dilocoo"),
    ],
)
def test_bad_input_is_told(arguments, said):
    error = plan(*PAPER, *arguments, code=2).stderr
    assert said in error
    assert "Traceback" not in error


def test_a_size_and_times_must_be_above_zero():
    rest = ["--bandwidth", "100Mbps", "--step-seconds", "1"]
    assert "--params must be a number above 0" in plan("--params", "0", *rest, code=2).stderr
    assert "--params is missing" in plan(*rest, code=2).stderr
    assert "--step-seconds must be" in plan("--params", "1e9", *rest[:2], "--step-seconds", "nan", code=2).stderr
