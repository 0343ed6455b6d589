"""Bytes sent between islands: counted at the tensor, and read at the socket."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

# Offset of tcpi_bytes_sent (u64) in Linux's struct tcp_info, after tcpi_delivered_ce; there since Linux 4.19.
_TCP_INFO_BYTES_SENT = 200
_TCP_INFO_LENGTH = 256


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

    _descriptors: list[int] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Remember the TCP sockets that this process opens inside the block."""
        # By inode: the number of a socket that was closed meanwhile is given to the next one.
        before = set(_tcp_sockets().values())
        yield
        self._descriptors = [fd for fd, inode in _tcp_sockets().items() if inode not in before]

    def bytes_sent(self) -> int | None:
        """Since the sockets were opened; None where the kernel does not tell (other systems, NCCL over InfiniBand)."""
        counts = [_bytes_sent(fd) for fd in self._descriptors]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None


def _tcp_sockets() -> dict[int, int]:
    """Inode of each descriptor of this process that is a TCP socket; none on systems without /proc."""
    if sys.platform != "linux":
        return {}
    descriptors = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _bytes_sent(fd) is not None]
    return {fd: os.fstat(fd).st_ino for fd in descriptors}


def _bytes_sent(fd: int) -> int | None:
    try:
        duplicate = socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    with duplicate:
        if duplicate.type != socket.SOCK_STREAM or duplicate.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_LENGTH)
        except OSError:
            return None
    if len(info) < _TCP_INFO_BYTES_SENT + 8:
        return None
    return int(struct.unpack_from("Q", info, _TCP_INFO_BYTES_SENT)[0])
