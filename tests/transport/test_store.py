"""The islands' store: found, waited for, and every way in which it is not there in words."""

import contextlib
import socket
import threading
import time

import pytest

from loco_train.errors import ConfigError, DeadlineExceeded, EnvironmentProblem, TransportError
from loco_train.transport.store import connect_rendezvous, serve_rendezvous, wait_for


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_served_values_are_read_over_a_connection():
    server = serve_rendezvous("127.0.0.1", 0)
    client = connect_rendezvous(f"127.0.0.1:{server.port}", timeout_seconds=5)
    client.set("key", "value")
    assert server.get("key") == b"value"


def test_a_port_in_use_is_named():
    server = serve_rendezvous("127.0.0.1", 0)
    with pytest.raises(EnvironmentProblem, match=f"127.0.0.1:{server.port}.*\n.*\n.*free port"):
        serve_rendezvous("127.0.0.1", server.port)


@pytest.mark.parametrize("address", ["", "host", "host:", ":29400", "host:port", "host:0", "host:70000"])
def test_a_malformed_address_is_refused(address):
    with pytest.raises(ConfigError, match="host:port"):
        connect_rendezvous(address, timeout_seconds=1)


def test_nobody_there_is_said_at_the_deadline():
    begin = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="no rendezvous answered"):
        connect_rendezvous(f"127.0.0.1:{free_port()}", timeout_seconds=0.5)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_another_service_is_told_and_not_waited_for_without_end(says):
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed at the end
                while True:
                    taken.append(other.accept()[0])
                    taken[-1].sendall(says)

        threading.Thread(target=serve, daemon=True).start()
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"no rendezvous answered[^$]*and no other service"):
            connect_rendezvous(f"127.0.0.1:{other.getsockname()[1]}", timeout_seconds=0.5)
        assert time.monotonic() - begin < 60
    for connection in taken:
        connection.close()


def test_a_rendezvous_that_starts_later_is_found():
    port, servers = free_port(), []
    timer = threading.Timer(1.0, lambda: servers.append(serve_rendezvous("127.0.0.1", port)))
    timer.start()
    try:
        assert connect_rendezvous(f"127.0.0.1:{port}", timeout_seconds=10).port == port
    finally:
        timer.join()


def test_missing_keys_are_named():
    server = serve_rendezvous("127.0.0.1", 0)
    server.set("here", "1")
    assert wait_for(server, ["here"], timeout_seconds=5) == []
    assert wait_for(server, ["here", "absent", "gone"], timeout_seconds=0.2) == ["absent", "gone"]


def test_a_store_that_died_is_a_transport_error():
    server = serve_rendezvous("127.0.0.1", 0)
    client = connect_rendezvous(f"127.0.0.1:{server.port}", timeout_seconds=5)
    del server
    with pytest.raises(TransportError, match="does not answer any more"):
        wait_for(client, ["key"], timeout_seconds=2)
