"""Islands as real processes: stand_in.py plays `loco train`, torchrun is the real one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from loco_train.config.load import ResolvedRun, load_run
from loco_train.errors import ConfigError
from loco_train.launch.local import IslandStart, LaunchResult, last_words, launch_local, train_command
from loco_train.testing.tiny import tiny_run

STAND_IN = Path(__file__).with_name("stand_in.py")


def launch(folder: Path, settings: dict[str, object], actions: list[str]) -> LaunchResult:
    """A run whose islands do `actions` (see stand_in.py), one each."""

    def island_command(start: IslandStart) -> list[str]:
        rendezvous = [start.rendezvous] if start.rendezvous else []
        return [str(STAND_IN), str(folder), str(start.index), actions[start.index], *rendezvous]

    every = {"run_dir": str(folder / "run"), "network.exchange_timeout": 0.5, "islands.count": len(actions)}
    run = tiny_run({**every, **settings})
    return launch_local(ResolvedRun(run, {}), island_command=island_command, grace_seconds=0.5)


def wait_for(condition: Callable[[], object], *, timeout_seconds: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def note(folder: Path, island: int, rank: int = 0) -> dict[str, Any]:
    path = folder / f"{island}.{rank}.json"
    wait_for(path.is_file)
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def is_gone(pid: int) -> bool:
    """Ended; a zombie counts, because an orphan's is reaped by whoever is process 1 here, if at all."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def launcher(folder: Path, actions: list[str], **settings: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, str(folder), json.dumps(settings), json.dumps(actions)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_every_rank_is_told_its_place_and_nothing_of_an_outer_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'it\'s a "run" $HOME'
    folder.mkdir()
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "77")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    children = children_of(os.getpid())  # other tests' fork server, where they ran before

    result = launch(folder, {"parallel.data": 2}, ["0", "0"])

    assert (result.exit_code, result.failed_island) == (0, None), (folder / "run/logs/island-0.log").read_text()
    notes = [note(folder, island, rank) for island in range(2) for rank in range(2)]
    variables = [n["variables"] for n in notes]
    assert [(v["RANK"], v["WORLD_SIZE"], v["LOCAL_RANK"]) for v in variables] == [("0", "2", "0"), ("1", "2", "1")] * 2
    assert not any("SLURM_STEP_ID" in v for v in variables)
    assert variables[0]["MASTER_PORT"] == variables[1]["MASTER_PORT"] != variables[2]["MASTER_PORT"] != "77"
    assert variables[0]["TORCHELASTIC_RUN_ID"] == f"{result.run_id}-0"
    assert variables[0]["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 4))
    # Every rank connected to this address before it ended well, and nobody serves it any more.
    address = {n["arguments"][4] for n in notes}
    assert len(address) == 1
    assert load_run(folder / "run" / "run.yaml").config.islands.count == 2
    assert all(is_gone(pid) for n in notes for pid in (n["pid"], n["parent"]) if pid != os.getpid())
    assert children_of(os.getpid()) == children


def test_the_program_of_a_rank() -> None:
    start = IslandStart("/runs/a b/run.yaml", "0123", 1, "127.0.0.1:29400")

    assert train_command(start)[:3] == ["-m", "loco_train.cli.main", "train"]
    assert train_command(start)[3:7] == ["--run", "/runs/a b/run.yaml", "--run-id", "0123"]
    assert train_command(start)[7:] == ["islands.index=1", "islands.rendezvous=127.0.0.1:29400"]
    assert "islands.rendezvous" not in " ".join(train_command(IslandStart("run.yaml", "0123", 0, None)))


def test_a_failed_island_gives_the_exit_code_and_the_others_are_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = launch(tmp_path, {}, ["sleep", "3"])

    assert (result.exit_code, result.failed_island) == (3, 1)
    assert is_gone(note(tmp_path, 0)["pid"])
    shown = capfd.readouterr().err
    assert "island 1 failed" in shown
    assert "island 1 ends with 3" in shown, "the end of the island's log"


@pytest.mark.parametrize("before", ["", ".venv/lib/python3.11/site-packages/"])
def test_torchruns_own_lines_are_known_wherever_it_is_installed(before: str) -> None:
    line = f"E1201 03:00:12.345000 77 {before}torch/distributed/elastic/multiprocessing/api.py:1022]"
    lines = ["ranks say why", f"{line} failed (exitcode: 4) local_rank: 1", f"{line} ======", "traceback : To enable"]
    assert last_words(lines) == ["ranks say why", "failed (exitcode: 4) local_rank: 1"]


def test_the_last_words_of_a_rank_come_before_torchruns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = launch(tmp_path, {"parallel.data": 2}, ["4"])

    assert (result.exit_code, result.failed_island) == (1, 0), "no event tells more; torchrun ends with 1"
    shown = capfd.readouterr().err.splitlines()
    assert any("island 0 ends with 4" in line for line in shown), shown
    assert shown[-2].startswith("failed (exitcode: 4) local_rank: ")
    assert shown[-1] == "the same command goes on from the last checkpoint"
    assert len(shown) <= 1 + 15 + 2


def test_an_island_that_was_killed_is_told_with_the_signal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with launcher(tmp_path, ["sleep", "sleep"]) as process:
        os.kill(note(tmp_path, 1)["pid"], signal.SIGKILL)
        _, shown = process.communicate(timeout=60)
    assert "island 1 failed, ended by SIGKILL" in shown
    assert "the same command goes on from the last checkpoint" in shown


def test_what_an_island_says_of_its_failure_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = launch(tmp_path, {"rounds": 4}, ["fail-with-event"])

    assert (result.exit_code, result.failed_island) == (8, 0), "of its event; the process itself ended with 1"
    shown = capfd.readouterr().err
    assert "the gradient is not finite" in shown
    assert "round 1/4  loss 4.0000  100 tokens/s  waited 0.25 s" in shown
    assert "held-out loss 3.5000 (perplexity 33.12) of the consensus" in shown


def test_an_island_killed_by_the_kernel(tmp_path: Path) -> None:
    with launcher(tmp_path, ["sleep", "sleep"]) as process:
        pids = [note(tmp_path, island)["pid"] for island in range(2)]
        os.kill(pids[1], signal.SIGKILL)
        out, err = process.communicate(timeout=30)

    assert process.returncode == 128 + signal.SIGKILL, err
    assert json.loads(out)["failed_island"] == 1
    assert all(map(is_gone, pids))


def test_a_killed_launcher_leaves_no_orphan(tmp_path: Path) -> None:
    with launcher(tmp_path, ["sleep", "stubborn"], **{"parallel.data": 2}) as process:
        ranks = [note(tmp_path, island, rank)["pid"] for island in range(2) for rank in range(2)]
        started = children_of(process.pid)
        assert len(started) == 3, "the rendezvous and two torchruns"
        process.kill()
        wait_for(lambda: all(map(is_gone, [*ranks, *started])), timeout_seconds=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_islands(tmp_path: Path, number: signal.Signals) -> None:
    with launcher(tmp_path, ["sleep"], **{"parallel.data": 2}) as process:
        ranks = [note(tmp_path, 0, rank)["pid"] for rank in range(2)]
        started = children_of(process.pid)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert number.name in err
    assert all(map(is_gone, [*ranks, *started]))


def test_the_same_run_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    first = launch(tmp_path, {"rounds": 4}, ["0"])
    again = launch(tmp_path, {"rounds": 4}, ["0"])

    assert first.run_id == again.run_id
    saved = (tmp_path / "run" / "run.yaml").read_bytes()
    with pytest.raises(ConfigError, match="rounds: 4 there, 5 now"):
        launch(tmp_path, {"rounds": 5}, ["0"])
    assert (tmp_path / "run" / "run.yaml").read_bytes() == saved
    assert (tmp_path / "run" / "logs" / "island-0.log").read_text().count("island 0 ends with 0") == 2


if __name__ == "__main__":  # a launcher that can be killed: FOLDER SETTINGS_JSON ACTIONS_JSON
    # Tests that run in the background of a script have SIGINT ignored, and so would this one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result = launch(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
    print(json.dumps(asdict(result)))
    sys.exit(result.exit_code)
