"""What is read of the sockets of this process."""

import os
import socket

from loco_train.transport.meters import SocketMeter


def test_what_a_closed_socket_sent_still_counts_and_its_numbers_next_owner_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        meter = SocketMeter()
        with meter.watching():
            one, other = (socket.create_connection(server.getsockname()) for _ in range(2))
        accepted = [server.accept()[0] for _ in range(2)]
        one.sendall(b"x" * 1000)
        other.sendall(b"x" * 100)
        assert meter.bytes_sent() == 1100
        number = one.fileno()
        one.close()
        stranger = socket.create_connection(server.getsockname())
        assert stranger.fileno() == number
        stranger.sendall(b"x" * 70)
        assert meter.bytes_sent() == 1100
        assert meter.any_closed()
        for connection in (other, stranger, *accepted):
            connection.close()


def test_reading_leaves_no_descriptor_open(tmp_path):
    with (tmp_path / "file").open("w"), socket.socket(), socket.socketpair()[0]:
        before = len(os.listdir("/proc/self/fd"))
        meter = SocketMeter()
        for _ in range(3):
            with meter.watching():
                pass
            meter.bytes_sent()
            meter.any_closed()
        assert len(os.listdir("/proc/self/fd")) == before
