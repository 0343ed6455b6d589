"""The program `loco` as a user runs it."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from loco_train.cli import main as program
from loco_train.config.load import load_run
from loco_train.errors import CheckpointError

LOCO = [sys.executable, "-m", "loco_train.cli.main"]


def loco(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*LOCO, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_help_lists_every_command_without_importing_any() -> None:
    source = "import sys\nfrom loco_train.cli.main import main\nsys.argv = ['loco', '--help']\ntry:\n  main()\n"
    source += "except SystemExit:\n  pass\nprint([m for m in sys.modules if m.split('.')[0] in ('torch', 'pydantic')])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)

    for name, command in program.COMMANDS.items():
        assert f" {name} " in done.stdout
        assert command.help.split()[0] in done.stdout
    assert done.stdout.rstrip().endswith("\n[]")


@pytest.mark.parametrize("name", list(program.COMMANDS))
def test_the_help_of_each_command_gives_an_example(name: str) -> None:
    command = program.COMMANDS[name].load(name)

    assert command.help
    assert command.epilog == f"Example: [bold]{program.COMMANDS[name].example}[/bold]"
    assert name in program.COMMANDS[name].example


def test_a_command_that_does_not_exist() -> None:
    assert "Did you mean 'inspect'?" in loco("inpect", code=2).stderr


def test_errors_for_the_user_are_a_message_on_stderr_and_their_exit_code() -> None:
    done = loco("config", "show", "quickstart", "optimizer.lrr=1", code=2)

    assert done.stdout == ""
    assert "did you mean optimizer.lr?" in done.stderr
    assert "Traceback" not in done.stderr


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(program, "app", fail)


def test_brackets_in_a_message_are_text_not_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(CheckpointError("no checkpoint", got="[bold]", fix="train"), monkeypatch)

    with pytest.raises(SystemExit) as ended:
        program.main()

    assert ended.value.code == CheckpointError.exit_code
    assert capsys.readouterr().err == "no checkpoint\n  got: [bold]\n  to do: train\n"


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(ZeroDivisionError(), monkeypatch)

    with pytest.raises(ZeroDivisionError):
        program.main()


def test_what_config_show_prints_is_a_run_file(tmp_path: Path) -> None:
    shown = loco("config", "show", "quickstart", "optimizer.lr=0.25").stdout
    (tmp_path / "run.yaml").write_text(shown)

    assert "lr: 0.25  # override" in shown
    assert load_run(tmp_path / "run.yaml").config == load_run("quickstart", ["optimizer.lr=0.25"]).config


def test_config_list_names_what_is_shipped() -> None:
    listed = loco("config", "list").stdout
    for name in ("quickstart", "llama-1b", "diloco", "loopback"):
        assert name in listed


def test_launch_local_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run_digest").write_text("another\n")

    done = loco("launch", "local", "--run", "quickstart", f"run_dir={tmp_path}", "device=cpu", "--json", code=2)

    assert f"{tmp_path} holds another run" in done.stderr
    assert "run_dir=" in done.stderr


def test_launch_local_gives_a_summary_and_the_islands_exit_code(tmp_path: Path) -> None:
    # The data is not there, so that each island ends early: with the settings' error code.
    overrides = [f"run_dir={tmp_path / 'run'}", "parallel.tensor=1", "device=cpu", "data.tokenizer=/no/such/file"]

    done = loco("launch", "local", "--run", "quickstart", "--islands", "1", *overrides, "--json", code=3)

    summary = json.loads(done.stdout)
    assert (summary["run"], summary["exit_code"], summary["failed_island"]) == ("quickstart", 3, 0)
    assert "/no/such/file" in done.stderr


def test_the_rendezvous_publishes_its_address_serves_and_ends_well_at_sigterm(tmp_path: Path) -> None:
    published = tmp_path / "the address"
    command = [*LOCO, "rendezvous", "--host", "127.0.0.1", "--port", "0", "--address-file", str(published)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not published.is_file():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        host, port = published.read_text().split(":")
        socket.create_connection((host, int(port)), timeout=10).close()
        in_use = loco("rendezvous", "--host", "127.0.0.1", "--port", port, code=5)
        assert "choose a free port" in in_use.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()


def test_config_as_json() -> None:
    shown = json.loads(loco("config", "show", "quickstart", "optimizer.lr=0.25", "--json").stdout)
    assert shown["settings"]["optimizer"]["lr"] == 0.25
    assert shown["origins"]["optimizer.lr"].startswith("override")
    assert "diloco" in json.loads(loco("config", "list", "--json").stdout)["method"]


def test_topology(tmp_path: Path) -> None:
    picture = tmp_path / "graph.svg"
    arguments = ("topology", "--method", "gasloc-ring", "--islands", "4")
    told = json.loads(loco(*arguments, "--json", "--rounds", "1", "--draw", str(picture)).stdout)
    third = pytest.approx(1 / 3)
    assert told["mix2"]["weights"][0][0] == [third, third, 0, third]
    assert told["mix2"]["contraction"] == pytest.approx(1 / 9)
    assert picture.read_text().startswith("<?xml")
    assert "0.1111 a round (exact)" in loco(*arguments).stdout
    assert "allowed: png, svg, pdf" in loco(*arguments, "--draw", str(tmp_path / "graph.txt"), code=2).stderr
    assert "exchanges nothing" in loco("topology", "--method", "data-parallel", "--islands", "1", code=2).stderr


def test_simulate(tmp_path: Path) -> None:
    dump = tmp_path / "all.npz"
    options = ["--rounds", "3", "--islands", "4", "--shape", "5x3", "--inner-steps", "4,4,2,1", "--fail", "1:0-1"]
    told = json.loads(loco("simulate", "--method", "gasloc-2peer", *options, "--dump", str(dump), "--json").stdout)
    arrays = np.load(dump)
    assert {name: arrays[name].shape for name in arrays.files} == {
        **dict.fromkeys(("curvature", "center", "final"), (4, 5, 3)),
        **dict.fromkeys(("start", "end", "base", "pseudo_gradient"), (3, 4, 5, 3)),
        **dict.fromkeys(("mix1", "mix2"), (3, 4, 4)),
    }
    assert (arrays["mix1"] == np.eye(4)).all()
    assert arrays["mix2"][1, 0, 1] == arrays["mix2"][1, 1, 0] == 0
    spread = np.linalg.norm((arrays["final"] - arrays["final"].mean(0)).reshape(4, -1), axis=1).mean()
    assert told["spread_l2"][1] == pytest.approx(spread, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inner-steps", "4,0"], "one positive number up to 1,000,000, or 4"),
        (["--inner-steps", "4,4"], "one positive number up to 1,000,000, or 4"),
        (["--set", "inner_steps=[1,2,3,4]"], "use --inner-steps"),
        (["--shape", "5"], "ROWSxCOLUMNS"),
        (["--shape", "100000x100000"], "do not fit into memory"),
        (["--fail", "9:0-1"], "a round from 0 to 2"),
        (["--fail", "1:1-1"], "two islands from 0 to 3"),
        (["--inner-lr", "0"], "--inner-lr must be positive"),
        (["--seeds", "0,1"], "--seeds is for --problem text"),
        (["--batch", "8"], "--batch is for --problem text"),
        (["--dump", "/missing/all.npz"], "there is no folder /missing"),
        (["--method", "data-parallel", "--fail", "0:0-1"], "data parallelism knows no failed exchange"),
        (["--method", "gaslock"], "did you mean gasloc-ring"),
        (["--set", "outer.lrr=1"], "did you mean method.outer.lr"),
        (["--set", "mix1.peers=all", "--set", "mix2.blocks=[layers.9]"], "layers.9 is no block of this model"),
        (["--set", "mix1.peers=all", "--set", "mix2.blocks=[layers.2]"], "layers.2 is no block of this model"),
        (["--set", "mix1.peers=all", "--set", "mix2.blocks=[layers.0]"], "embedding"),
        (["--method", "gasloc-1peer", "--set", "aggregator.kind=iso"], "unsound"),
        (["--method", "data-parallel", "--inner-steps", "1,2,3,4"], "step together"),
        (["--set", "mix2={peers: graph, graph: /none.yaml}"], "there is no graph file"),
        (
            ["--set", "mix1.peers=all", "--set", "mix2={peers: ring, blocks: measured, budget: 1MB}"],
            "the simulator does not measure blocks",
        ),
    ],
)
def test_simulate_refuses(options: list[str], message: str) -> None:
    done = loco("simulate", "--islands", "4", "--rounds", "3", *options, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_simulate_text_with_a_sweep(tmp_path: Path) -> None:
    small = ["--islands", "2", "--rounds", "2", "--inner-steps", "2", "--warm-up-steps", "3", "--batch", "4"]
    options = ["--sweep", "outer.lr=0.5,1.0", "--seeds", "0,1", "--plot", str(tmp_path / "plot.svg"), "--json"]
    runs = json.loads(loco("simulate", "--problem", "text", *small, *options).stdout)["runs"]
    assert [(run["outer.lr"], run["seed"]) for run in runs] == [("0.5", 0), ("0.5", 1), ("1.0", 0), ("1.0", 1)]
    assert all(len(run["losses"]) == 2 and run["losses"][-1] == run["loss"] for run in runs)
    assert len({run["loss"] for run in runs}) == 4
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep", "outer.lr"], "outer.lr=0.4,0.7,1.0"),
        (["--inner-lr", "0"], "--inner-lr must be positive"),
        (["--dump", "all.npz"], "--dump is for --problem quadratic"),
        (["--sweep", "inner_lr=x"], "takes numbers"),
        (["--sweep", "inner_lr=nan"], "must be positive"),
        (["--sweep", "outer.lr=1", "--sweep", "outer.lr=2"], "outer.lr is given twice"),
        (["--sweep", "inner_steps=1,2"], "does not take inner steps"),
        (["--shape", "3x3"], "--shape is for --problem quadratic"),
        (["--plot", "losses.gif"], "png, svg, pdf"),
        (["--seeds", "1,1"], "different whole numbers"),
        (["--seed", "1", "--seeds", "1"], "seeds are given twice"),
        (["--method", "streaming-diloco", "--set", "streaming.fragments=5"], "fragments"),
        (["--sweep", "outer.lrr=1"], "did you mean method.outer.lr"),
        (["--seeds", "a"], "whole numbers"),
        (["--islands", "5"], "32 sequences and 5 islands"),
    ],
)
def test_simulate_text_refuses(options: list[str], message: str) -> None:
    assert message in loco("simulate", "--problem", "text", "--rounds", "1", *options, code=2).stderr


def test_simulate_text_that_diverges_fails() -> None:
    small = ["--islands", "2", "--rounds", "3", "--inner-steps", "3", "--warm-up-steps", "2", "--batch", "4"]
    done = loco("simulate", "--problem", "text", *small, "--inner-lr", "1e6", code=8)
    assert "no run came to its end: round 0: NaN or infinity" in done.stderr


def test_pace() -> None:
    times = ("pace", "--step-seconds", "1,1,1,2", "--exchange-seconds", "1.5", "--most", "10")
    assert loco(*times).stdout == "method.inner_steps=[10,10,10,5]\n"
    assert json.loads(loco(*times, "--json").stdout)["inner_steps"] == [10, 10, 10, 5]
    assert "times come from one place" in loco("pace", "--step-seconds", "1", code=2).stderr
    assert "holds no run" in loco("pace", "nowhere", code=2).stderr
    assert "seconds: 1.2,1.2,2.5" in loco("pace", "--step-seconds", "x", "--exchange-seconds", "1", code=2).stderr
