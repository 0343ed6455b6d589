"""loco rendezvous: the store where islands meet, as a process that outlives them."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loco_train.launch.processes import end_with

_END_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def rendezvous(
    *,
    host: Annotated[str, typer.Option(help="Address to serve on; 0.0.0.0 for all of this machine.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 29400,
    address_file: Annotated[
        Path | None, typer.Option(help="Write host:port here once it is served; for --port 0.")
    ] = None,
    with_parent: Annotated[
        int | None, typer.Option(metavar="PID", help="End when this process, which must be the parent, ends.")
    ] = None,
) -> None:
    """Serve the store where islands on several machines meet, until Ctrl-C or SIGTERM.

    Start it once, on a machine that every island reaches, and give its address to each island as
    islands.rendezvous=HOST:PORT. Islands that restart meet here again.
    """
    if with_parent is not None:
        end_with(with_parent)
    # Blocked before the store starts its threads: they inherit it, and the signal waits for sigwait below.
    signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    from loco_train.transport.store import serve_rendezvous

    store = serve_rendezvous(host, port)
    address = f"{socket.gethostname() if host == '0.0.0.0' else host}:{store.port}"
    if address_file is not None:
        _publish(address_file, address)
    Console(stderr=True, soft_wrap=True).print(f"rendezvous at {address}; Ctrl-C ends it", highlight=False)
    signal.sigwait(_END_SIGNALS)


def _publish(path: Path, text: str) -> None:
    """Write a file that a reader finds whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
