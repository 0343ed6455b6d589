"""Run a function on real ranks: `run_ranks` (one island) and `run_islands` (several, each with its own world).

Ranks are fresh processes forked from a server that has imported the heavy packages once, so a test pays milliseconds
for real processes, real gloo and no state left over from the test before.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class World:
    """Where a rank stands: its island, and its rank inside it."""

    island: int
    islands: int
    rank: int
    ranks: int
    rendezvous: str  # host:port of a TCPStore that outlives every rank
    folder: Path  # shared by all ranks, removed after the run


class RankFailed(AssertionError):
    """A rank raised, died or outlived the deadline; the message holds every rank's traceback."""


@dataclass(frozen=True)
class _Call:
    """A function by file and name: test modules are not importable by name in another process."""

    file: str
    module: str
    name: str

    @staticmethod
    def of(function: Callable[..., Any]) -> _Call:
        return _Call(sys.modules[function.__module__].__file__ or "", function.__module__, function.__qualname__)

    def load(self) -> Callable[..., Any]:
        try:
            module = importlib.import_module(self.module)
        except ImportError:
            spec = importlib.util.spec_from_file_location(self.module, self.file)
            if spec is None or spec.loader is None:
                raise
            module = importlib.util.module_from_spec(spec)
            sys.modules[self.module] = module
            spec.loader.exec_module(module)
        found: Any = module
        for part in self.name.split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]


def run_ranks(function: Callable[..., Any], *args: Any, ranks: int = 2, timeout_seconds: float = 120) -> list[Any]:
    """Call `function(world, *args)` on `ranks` processes that share a gloo default group; results by rank.

    `function` must be a module-level function; arguments and results are pickled. Raises RankFailed.
    """
    return run_islands(function, *args, islands=1, ranks=ranks, timeout_seconds=timeout_seconds)[0]


def run_islands(
    function: Callable[..., Any],
    *args: Any,
    islands: int = 2,
    ranks: int = 1,
    timeout_seconds: float = 120,
    mortal: Collection[int] = (),
    backend: str = "gloo",
) -> list[list[Any]]:
    """Call `function(world, *args)` on islands * ranks processes; each island has its own default group.

    mortal: islands whose processes may die without a result, which is then None. backend: of the default groups; with
    nccl the processes are started anew instead of forked, because a fork cannot use its parent's CUDA.

    Returns results[island][rank]. Raises RankFailed.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="loco-ranks-") as folder:
        address = f"127.0.0.1:{store.port}"
        worlds = [World(i, islands, r, ranks, address, Path(folder)) for i in range(islands) for r in range(ranks)]
        call = partial(_worker, _Call.of(function), pickled_args=pickle.dumps(args), backend=backend)
        results = _run(call, worlds, time.monotonic() + timeout_seconds, mortal=mortal, fork=backend == "gloo")
    return [results[i * ranks : (i + 1) * ranks] for i in range(islands)]


def _run(
    work: Callable[..., None], worlds: list[World], deadline: float, *, mortal: Collection[int], fork: bool
) -> list[Any]:
    processes, readers = [], []
    for world in worlds:
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = _process(work, (world, writer), fork=fork)
        process.start()
        writer.close()
        processes.append(process)
        readers.append(reader)
    try:
        return _collect(worlds, readers, deadline, mortal)
    finally:
        for process in processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()


def _process(target: Callable[..., None], args: tuple[Any, ...], *, fork: bool) -> BaseProcess:
    if not fork:
        return multiprocessing.get_context("spawn").Process(target=target, args=args, daemon=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loco_train.testing.preload"])
    return context.Process(target=target, args=args, daemon=True)


def _collect(worlds: list[World], readers: list[Connection], deadline: float, mortal: Collection[int]) -> list[Any]:
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    waiting = dict(enumerate(readers))
    while waiting:
        # After a first failure the others get a few seconds to tell their side, then they are ended.
        limit = min(deadline, time.monotonic() + 5) if failures else deadline
        ready = wait(list(waiting.values()), timeout=max(0.0, limit - time.monotonic()))
        if not ready:
            failures.update(dict.fromkeys(waiting, "no answer within the deadline"))
            break
        for index in [i for i, reader in waiting.items() if reader in ready]:
            failed, value = _receive(waiting.pop(index), may_die=worlds[index].island in mortal)
            (failures if failed else results)[index] = value
    if failures:
        told = [f"island {worlds[i].island} rank {worlds[i].rank}: {text}" for i, text in sorted(failures.items())]
        raise RankFailed("\n".join(told))
    return [results[i] for i in range(len(worlds))]


def _receive(reader: Connection, *, may_die: bool) -> tuple[bool, Any]:
    """(whether the rank failed, its result or what went wrong)."""
    try:
        failed, value = pickle.loads(reader.recv_bytes())
    except EOFError:
        return (False, None) if may_die else (True, "the process died")
    return failed, value


def _worker(call: _Call, world: World, writer: Connection, *, pickled_args: bytes, backend: str) -> None:
    try:
        _join_world(world, backend)
        value = call.load()(world, *pickle.loads(pickled_args))
        answer = pickle.dumps((False, value))
    except BaseException:
        answer = pickle.dumps((True, traceback.format_exc()))
    writer.send_bytes(answer)
    writer.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of gloo and DeepSpeed may outlive the function; a normal exit would wait for them.
    os._exit(0)


def _join_world(world: World, backend: str) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(world.rank),
        LOCAL_RANK=str(world.rank),
        WORLD_SIZE=str(world.ranks),
        LOCAL_WORLD_SIZE=str(world.ranks),
    )
    if backend == "nccl":
        # One rank a GPU inside an island; islands share GPUs.
        torch.cuda.set_device(world.rank)
    store = torch.distributed.FileStore(str(world.folder / f"island-{world.island}"), world.ranks)
    torch.distributed.init_process_group(backend, store=store, rank=world.rank, world_size=world.ranks)
