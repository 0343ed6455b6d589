"""The store where islands meet: served by a process that outlives them, reached by every rank."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import DistError, DistNetworkError, Store, TCPStore

from loco_train.errors import ConfigError, DeadlineExceeded, EnvironmentProblem, TransportError

# Between two looks at the store: short for islands that arrive together, long for those that wait for minutes.
_MOST_REFUSALS = 2
_CONNECT_SECONDS = 15.0
# TCPStore ends its own attempts up to 2 s after its time.
_GRACE_SECONDS = 5.0
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.5


def serve_rendezvous(host: str, port: int) -> TCPStore:
    """Serve a store on `host`:`port` (0: any free port, see `.port`) as long as the returned object lives.

    Raises:
        EnvironmentProblem: the port is in use, or the address is not of this machine.
    """
    try:
        return TCPStore(host, port, is_master=True, wait_for_workers=False)
    except DistNetworkError as error:
        raise EnvironmentProblem(
            f"cannot serve the rendezvous on {host}:{port}",
            got=str(error).splitlines()[0],
            fix="choose a free port (--port 0 takes any), or end what listens there",
        ) from error


def connect_rendezvous(address: str, *, timeout_seconds: float) -> TCPStore:
    """A connection to the store at `address` ("host:port"), tried until the deadline: islands start in any order.

    Raises:
        ConfigError: `address` is not host:port.
        DeadlineExceeded: nobody answered within the deadline.
    """
    host, port = _parse(address)
    deadline = time.monotonic() + timeout_seconds
    refused = 0
    while True:
        try:
            # A plain connection first: TCPStore prints a page of C++ frames for each attempt that fails.
            socket.create_connection((host, port), timeout=5).close()
            store = _open(host, port, timeout_seconds=min(_CONNECT_SECONDS, timeout_seconds))
            store.set_timeout(timedelta(seconds=timeout_seconds))
            return store
        except (OSError, DistError, _Silent) as error:
            # Something listens there, and does not speak as a store does: another service's port.
            refused += isinstance(error, (DistError, _Silent))
            if refused == _MOST_REFUSALS or time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    f"no rendezvous answered at {address}" + ("" if refused else f" within {timeout_seconds:g} s"),
                    got=str(error).splitlines()[0],
                    fix="check islands.rendezvous: `loco rendezvous` must run there, and no other service; firewalls "
                    "between the islands must let its port through",
                ) from error
            time.sleep(0.2)


class _Silent(Exception):
    """Took the connection, and answers nothing."""


def _open(host: str, port: int, *, timeout_seconds: float) -> TCPStore:
    """In a thread of its own, which is left behind: TCPStore waits without end for a service that does not answer."""
    opened: queue.SimpleQueue[TCPStore | Exception] = queue.SimpleQueue()
    timeout = timedelta(seconds=timeout_seconds)

    def run() -> None:
        try:
            opened.put(TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout))
        except Exception as error:
            opened.put(error)

    threading.Thread(target=run, daemon=True, name="rendezvous").start()
    try:
        result = opened.get(timeout=timeout_seconds + _GRACE_SECONDS)
    except queue.Empty:
        raise _Silent(f"what listens there took the connection and said nothing for {timeout_seconds:g} s") from None
    if isinstance(result, Exception):
        raise result
    return result


def wait_for(
    store: Store, keys: list[str], *, timeout_seconds: float, hopeless: Callable[[], bool] = lambda: False
) -> list[str]:
    """Wait until all keys are there; the ones still missing at the deadline (none: all there).

    hopeless: asked again and again; true ends the wait as if at the deadline.

    Raises:
        TransportError: the store itself is gone.
    """
    deadline = time.monotonic() + timeout_seconds
    pause_seconds = _SHORTEST_PAUSE_SECONDS
    try:
        # The store's own wait cannot be left early, and prints a page of C++ frames at its deadline.
        while not store.check(keys):
            if time.monotonic() >= deadline or hopeless():
                return [key for key in keys if not store.check([key])]
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
    except RuntimeError as error:
        raise lost_store(error) from error
    return []


def lost_store(error: Exception) -> TransportError:
    """The typed error for a store that does not answer."""
    return TransportError(
        "the rendezvous store does not answer any more",
        got=str(error).splitlines()[0],
        fix="start the rendezvous and the islands again; they resume from the last common checkpoint",
    )


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError("islands.rendezvous is no address", got=repr(address), allowed="host:port, as in node1:29400")
    return host, int(port)
