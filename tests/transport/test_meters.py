"""What is read of the sockets of this process."""

import os
import socket

from loco_train.transport.meters import SocketMeter


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
