"""All islands of a run on this machine: started, watched, and ended together."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from rich.console import Console
from rich.text import Text

from loco_train.config.load import ResolvedRun
from loco_train.config.schema import RunConfig
from loco_train.errors import EnvironmentProblem, TransportError
from loco_train.launch.follow import Standing, View, progress_view
from loco_train.launch.placement import island_variables, split_devices, visible_devices
from loco_train.launch.processes import Child, stop
from loco_train.launch.run_folder import ClaimedFolder, claim_run_folder

_POLL_SECONDS = 0.1
_RENDEZVOUS_START_SECONDS = 120.0
_SHOWN_LOG_LINES = 15
# torchrun ends a failed job's log with two pages of its own; the rank's last words are before them.
# torch shortens its own path by what lies on sys.path: with a .venv in the current folder more stands before it.
_TORCHRUN_LINE = re.compile(r"[WE]\d{4} .* \S*torch/distributed/elastic/\S+\] (?P<text>.*)")


@dataclass(frozen=True)
class IslandStart:
    """What an island's ranks are told. rendezvous: host:port; None for a single island."""

    settings: str
    run_id: str
    index: int
    rendezvous: str | None


@dataclass(frozen=True)
class LaunchResult:
    """How a run ended. exit_code: 0, that of the first failed island, or 128 + number of the signal that ended it."""

    exit_code: int
    seconds: float
    failed_island: int | None
    run_id: str


def train_command(start: IslandStart) -> list[str]:
    """What each rank runs, as arguments of python and of torchrun alike: `loco train`."""
    overrides = [f"islands.index={start.index}"]
    if start.rendezvous is not None:
        overrides.append(f"islands.rendezvous={start.rendezvous}")
    program = ["-m", "loco_train.cli.main", "train", "--run", start.settings, "--run-id", start.run_id]
    return [*program, *overrides]


def launch_local(
    resolved: ResolvedRun,
    *,
    island_command: Callable[[IslandStart], list[str]] = train_command,
    grace_seconds: float = 30.0,
) -> LaunchResult:
    """Run all islands on this machine until the last ends; a run that was started before goes on.

    SIGINT, SIGTERM and SIGHUP end all islands first. To be called from the main thread.

    Args:
        island_command: arguments of python, `[script, argument, ...]` or `["-m", module, ...]`, for each rank.
        grace_seconds: what islands get beyond network.exchange_timeout to end by themselves after one has failed.

    Raises:
        ConfigError: the run's folder holds another run.
        EnvironmentProblem: too few GPUs, another launcher runs the same folder, or the rendezvous does not start.
    """
    began = time.monotonic()
    config = resolved.config
    devices = split_devices(
        visible_devices(os.environ),
        device=config.device,
        islands=config.islands.count,
        ranks=config.parallel.ranks,
    )
    with claim_run_folder(resolved) as folder, _ended_together() as fleet:
        standing = Standing(folder.path, config)
        rendezvous = _start_rendezvous(fleet, folder) if config.islands.count > 1 else None
        for index in range(config.islands.count):
            if fleet.signal is not None:
                break
            start = IslandStart(str(folder.settings), folder.run_id, index, rendezvous)
            command = _island_program(config, start, arguments=island_command(start))
            fleet.islands.append(_start_island(config, folder, index, command=command, devices=devices[index]))
        with progress_view() as view:
            _watch(fleet, standing, view, grace_seconds=config.network.exchange_timeout + grace_seconds)
        return _result(fleet, standing, seconds=time.monotonic() - began, run_id=folder.run_id)


@dataclass
class _Fleet:
    """The processes of a run. signal: the first that the launcher got. failed: islands that failed by themselves."""

    islands: list[Child] = field(default_factory=list)
    others: list[Child] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    signal: int | None = None

    def note_failures(self) -> None:
        """Take note of islands that have ended badly, in the order in which they did."""
        new = (index for index, child in enumerate(self.islands) if child.poll() and index not in self.failed)
        self.failed += list(new)

    @property
    def running(self) -> list[Child]:
        return [child for child in self.islands if child.poll() is None]


@contextmanager
def _ended_together() -> Iterator[_Fleet]:
    """A fleet of which nothing is left afterwards, whatever happens; signals are noted in it meanwhile."""
    fleet = _Fleet()

    def note(number: int, frame: FrameType | None) -> None:
        fleet.signal = fleet.signal or number

    watched = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    # A signal that is ignored (nohup) stays ignored.
    before = {number: signal.getsignal(number) for number in watched}
    for number in watched:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield fleet
    finally:
        stop([*fleet.islands, *fleet.others])
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_rendezvous(fleet: _Fleet, folder: ClaimedFolder) -> str:
    """The address of a rendezvous that serves."""
    address_file = folder.path / "rendezvous"
    address_file.unlink(missing_ok=True)
    program = [sys.executable, "-m", "loco_train.cli.main", "rendezvous", "--host", "127.0.0.1", "--port", "0"]
    child = Child.start(
        [*program, "--address-file", str(address_file)],
        name="rendezvous",
        variables=island_variables(os.environ, all_ranks=1, devices=None),
        log=folder.log("rendezvous"),
    )
    fleet.others.append(child)
    deadline = time.monotonic() + _RENDEZVOUS_START_SECONDS
    while not address_file.is_file():
        if fleet.signal is not None:
            return ""
        if child.poll() is not None or time.monotonic() > deadline:
            raise EnvironmentProblem(
                "the rendezvous of the islands does not start", got="\n".join(child.last_lines(_SHOWN_LOG_LINES))
            )
        time.sleep(0.05)
    return address_file.read_text(encoding="utf-8").strip()


def _island_program(config: RunConfig, start: IslandStart, *, arguments: list[str]) -> list[str]:
    """The ranks of one island: python itself for one, else torchrun with a store of its own on a free port."""
    if config.parallel.ranks == 1:
        return [sys.executable, *arguments]
    settings = {
        "nnodes": 1,
        "nproc-per-node": config.parallel.ranks,
        "rdzv-backend": "c10d",
        "rdzv-endpoint": "127.0.0.1:0",
        "rdzv-id": f"{start.run_id}-{start.index}",
        # Else the ranks look this machine up by its name, which not every machine's resolver knows.
        "local-addr": "127.0.0.1",
        "max-restarts": 0,
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    # Behind the dashes: up to Python 3.11 torchrun takes the ranks' --run for a short form of its own --run-path.
    module = [argument for argument in arguments[:1] if argument == "-m"]
    return [sys.executable, "-m", "torch.distributed.run", *options, *module, "--", *arguments[len(module) :]]


def _start_island(
    config: RunConfig, folder: ClaimedFolder, index: int, *, command: list[str], devices: str | None
) -> Child:
    variables = island_variables(os.environ, all_ranks=config.islands.count * config.parallel.ranks, devices=devices)
    return Child.start(command, name=f"island {index}", variables=variables, log=folder.log(f"island-{index}"))


def _watch(fleet: _Fleet, standing: Standing, view: View, *, grace_seconds: float) -> None:
    """Until the last island has ended, or must be ended: by a signal, or `grace_seconds` after another failed.

    Islands end by themselves when an exchange fails; only they can say why, so they get the time for it.
    """
    deadline: float | None = None
    while fleet.running and fleet.signal is None:
        view.show(standing, standing.update())
        fleet.note_failures()
        if fleet.failed and deadline is None:
            deadline = time.monotonic() + grace_seconds
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    fleet.note_failures()
    stop(fleet.running)
    view.show(standing, standing.update())


def _result(fleet: _Fleet, standing: Standing, *, seconds: float, run_id: str) -> LaunchResult:
    if fleet.signal is not None:
        _say(f"ended by {signal.Signals(fleet.signal).name}; the same command goes on from the last checkpoint")
        return LaunchResult(128 + fleet.signal, seconds, None, run_id)
    if not fleet.failed:
        return LaunchResult(0, seconds, None, run_id)
    codes = {index: _exit_code(fleet.islands[index], standing, index) for index in fleet.failed}
    # A failed exchange is most often the echo of another island's failure, which may be noticed later.
    causes = [index for index, code in codes.items() if code != TransportError.exit_code]
    island = (causes or fleet.failed)[0]
    _tell_failure(fleet.islands[island], standing, island)
    return LaunchResult(codes[island], seconds, island, run_id)


def _exit_code(child: Child, standing: Standing, island: int) -> int:
    """What the island said itself; torchrun ends with 1 whatever its ranks end with."""
    failure = standing.failures.get(island)
    return failure.exit_code if failure else child.exit_code or 1


def _tell_failure(child: Child, standing: Standing, island: int) -> None:
    failure = standing.failures.get(island)
    text = failure.message if failure else "\n".join(last_words(child.last_lines(1000)))
    _say(f"{child.name} failed{_by_signal(child)} (whole log: {child.log}):\n{text}")
    if not failure:
        _say("the same command goes on from the last checkpoint")


def _by_signal(child: Child) -> str:
    """How it ended where it could not say so itself."""
    number = (child.exit_code or 0) - 128
    return f", ended by {signal.Signals(number).name}" if number in set(signal.Signals) else ""


def last_words(lines: Sequence[str]) -> list[str]:
    """The end of what the ranks wrote, and torchrun's line on the rank that failed, without the rest of torchrun's."""
    told = [(index, match["text"]) for index, line in enumerate(lines) if (match := _TORCHRUN_LINE.match(line))]
    end = told[0][0] if told else len(lines)
    verdict = [text for _, text in told if text.startswith("failed (exitcode")]
    return [*lines[:end][-_SHOWN_LOG_LINES:], *verdict[:1]]


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        Console(stderr=True, soft_wrap=True, highlight=False).print(Text(text, style="red"))
