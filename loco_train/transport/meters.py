"""Bytes sent between islands: counted at the tensor, and read at the socket."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

# Offset of tcpi_bytes_sent (u64) in Linux's struct tcp_info, after tcpi_delivered_ce; there since Linux 4.19.
_BYTES_SENT_OFFSET = 200
_TCP_INFO_LENGTH = 256
# tcpi_state, the first byte: TCP_CLOSE, TCP_CLOSE_WAIT (the other side has ended), and the closing states.
_CLOSED_STATES = (4, 5, 6, 7, 8, 9, 11)


@dataclass
class ByteCounter:
    """Payload bytes that this rank sent, by the formula of the collective: what the method costs on any network."""

    bytes_sent: int = 0

    def add_all_reduce(self, payload_bytes: int, *, islands: int) -> None:
        """A ring all-reduce sends 2 (R - 1) / R of the payload from each rank."""
        self.bytes_sent += 2 * (islands - 1) * payload_bytes // islands


@dataclass
class SocketMeter:
    """Bytes that the kernel sent on the sockets opened within `watching`, headers excluded, retransmissions included.

    Reads the sockets of this process alone, so that an island's own traffic on the same interface is not counted.
    """

    _inodes: dict[int, int] = field(default_factory=dict)
    _last_counts: dict[int, int] = field(default_factory=dict)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Remember the TCP sockets that this process opens inside the block."""
        # By inode: the number of a socket that was closed meanwhile is given to the next one.
        before = set(_tcp_sockets().values())
        yield
        self._inodes = {fd: inode for fd, inode in _tcp_sockets().items() if inode not in before}
        self._last_counts = {}

    def bytes_sent(self) -> int | None:
        """Since the sockets were opened, those that are closed by now included; None where the kernel does not tell."""
        for fd, inode in self._inodes.items():
            # Another connection may have got the number of one that was closed.
            count = _bytes_sent(fd) if _inode(fd) == inode else None
            if count is not None:
                self._last_counts[fd] = count
        return sum(self._last_counts.values()) if self._last_counts else None

    def any_closed(self) -> bool:
        """Whether one of these sockets is closed, by either side: the kernel tells at once when a process ends."""
        return any(_inode(fd) != inode or _state(fd) in _CLOSED_STATES for fd, inode in self._inodes.items())


def _tcp_sockets() -> dict[int, int]:
    """Inode of each descriptor of this process that is a TCP socket; none on systems without /proc."""
    if sys.platform != "linux":
        return {}
    descriptors = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _bytes_sent(fd) is not None]
    return {fd: os.fstat(fd).st_ino for fd in descriptors}


def _inode(fd: int) -> int | None:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return None


def _bytes_sent(fd: int) -> int | None:
    info = _tcp_info(fd)
    if len(info) < _BYTES_SENT_OFFSET + 8:
        return None
    return int(struct.unpack_from("Q", info, _BYTES_SENT_OFFSET)[0])


def _state(fd: int) -> int | None:
    info = _tcp_info(fd)
    return info[0] if info else None


def _tcp_info(fd: int) -> bytes:
    """The kernel's struct tcp_info of a TCP socket; empty for anything else."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return b""
        duplicate = os.dup(fd)
    except OSError:
        return b""
    with socket.socket(fileno=duplicate) as connection:
        if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
            return b""
        try:
            return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_LENGTH)
        except OSError:
            return b""
