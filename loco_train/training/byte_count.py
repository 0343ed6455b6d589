"""Bytes that a rank sent to its counterparts, told once: in the round's report or in a measurement's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loco_train.transport.counterparts import Counterparts


@dataclass
class Sent:
    """Counted bytes of one block; known at its end."""

    counted: int = 0


@dataclass
class ByteCount:
    """Bytes that this rank sent since the last `take`, counted and on its sockets."""

    counterparts: list[Counterparts]
    counted: int = 0
    on_sockets: int = 0

    def take(self) -> tuple[int, int | None]:
        counted = sum(each.counter.bytes_sent for each in self.counterparts)
        each_socket = [each.socket_bytes_sent() for each in self.counterparts]
        known = [count for count in each_socket if count is not None]
        new = counted - self.counted, sum(known) - self.on_sockets if known else None
        self.counted, self.on_sockets = counted, sum(known)
        return new

    @contextmanager
    def apart(self, counterparts: Counterparts) -> Iterator[Sent]:
        """What `counterparts` send inside the block is told by what it yields, and not by the next `take`.

        Others may send at the same time: mix1 is under way when health is measured, and is the round's.
        """
        sent = Sent()
        counted, on_sockets = counterparts.counter.bytes_sent, counterparts.socket_bytes_sent()
        try:
            yield sent
        finally:
            sent.counted = counterparts.counter.bytes_sent - counted
            self.counted += sent.counted
            self.on_sockets += (counterparts.socket_bytes_sent() or 0) - (on_sockets or 0)
