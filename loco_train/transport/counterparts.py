"""The communicator of one position: its counterparts in all islands, in a group of their own.

The group is built outside the default group over a second store, so that DeepSpeed and Megatron see only the island,
and a broken exchange leaves the island's own collectives untouched.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store

from loco_train.errors import ConfigError, DeadlineExceeded, EnvironmentProblem, PeerLost, TransportError
from loco_train.transport.meters import ByteCounter, SocketMeter
from loco_train.transport.pending import PendingGather, PendingMean, PendingMix


@dataclass(frozen=True)
class Position:
    """Where a rank stands in its island; ranks at the same position in different islands are counterparts."""

    pipeline: int
    tensor: int
    data: int

    def __str__(self) -> str:
        return f"pp{self.pipeline}-tp{self.tensor}-dp{self.data}"


class Counterparts:
    """Exchanges between this rank and the ranks at its position in the other islands.

    After any error the group is dead: gloo closes every connection of a group in which one operation timed out, also
    between ranks that are well. Every later call raises at once.
    """

    def __init__(
        self,
        store: Store | None,
        *,
        prefix: str,
        position: Position,
        index: int,
        count: int,
        device: torch.device,
        backend: str,
        timeout_seconds: float,
        bucket_bytes: int,
        interface: str | None = None,
    ) -> None:
        """Connect to the counterparts; waits for them up to `timeout_seconds`. One island needs no store.

        Args:
            prefix: of this run and its generation on the store.
            device: of this rank; tensors travel from it with nccl, from the host with gloo.
            backend: auto, gloo or nccl. interface: gloo's network interface, by name.

        Raises:
            DeadlineExceeded, TransportError: a counterpart did not come. ConfigError, EnvironmentProblem: backend or
                interface is not to be had.
        """
        self.index = index
        self.count = count
        self.backend = _choose_backend(backend, device)
        self.device = device if self.backend == "nccl" else torch.device("cpu")
        self.down: frozenset[frozenset[int]] = frozenset()
        self.counter = ByteCounter()
        self.sockets = SocketMeter()
        self._timeout_seconds = timeout_seconds
        self._bucket_bytes = bucket_bytes
        self._broken: TransportError | None = None
        self._group: Any = None
        if count > 1:
            if store is None:
                raise ValueError("more than one island needs a store")
            own_store = PrefixStore(f"{prefix}/position/{position}", store)
            with self.sockets.watching(), _as_transport_errors(f"connecting position {position}", timeout_seconds):
                self._group = self._build(own_store, interface)
                # Connections may be made at their first use: now, where it is said which position does not connect.
                self.finish(self._group.allreduce([torch.zeros(count, device=self.device)], _sum_options()))

    def mean(self, tensor: Tensor) -> PendingMean:
        """Start replacing `tensor` by its mean over all islands; the result is bit-equal on each.

        tensor: flat, contiguous, fp32 or fp64, on `device`. Every element travels, in buckets of `bucket_bytes`.

        Raises:
            TransportError: the group broke before.
        """
        _check(tensor)
        if self.count == 1 or tensor.numel() == 0:
            return PendingMean(self, [], [])
        if self._broken:
            raise self._broken
        bucket_elements = max(1, self._bucket_bytes // tensor.element_size())
        buckets = list(torch.split(tensor, bucket_elements))
        try:
            works = [self._group.allreduce([bucket], _sum_options()) for bucket in buckets]
        except RuntimeError as error:
            raise self.broken(error) from error
        self.counter.add_all_reduce(tensor.numel() * tensor.element_size(), islands=self.count)
        return PendingMean(self, works, buckets)

    def gather(self, tensor: Tensor, out: Tensor) -> PendingGather:
        """Start copying the islands' tensors into the rows of `out`, bit for bit.

        tensor: as for `mean`. out: [count, n], contiguous, of its dtype and device.

        Raises:
            TransportError: the group broke before.
        """
        _check(tensor)
        if self.count == 1 or tensor.numel() == 0:
            out.copy_(tensor[None])
            return PendingGather(self, [])
        if self._broken:
            raise self._broken
        try:
            work = self._group.allgather([list(out.unbind())], [tensor])
        except RuntimeError as error:
            raise self.broken(error) from error
        self.counter.bytes_sent += (self.count - 1) * tensor.numel() * tensor.element_size()
        return PendingGather(self, [work])

    def mix(self, tensor: Tensor, weights: Mapping[int, float]) -> PendingMix:
        """Start replacing `tensor` by the sum of weights[j] times the tensor of island j, this island's own included.

        tensor: flat, contiguous, fp32 or fp64, on `device`; not to be touched until the wait. weights: by island; each
        of these islands must name this one in its own call, the others need not call. Only these islands wait for
        each other.

        Raises:
            TransportError: the group broke before.
        """
        _check(tensor)
        others = [island for island in weights if island != self.index] if tensor.numel() else []
        if self._broken:
            raise self._broken
        received = {island: torch.empty_like(tensor) for island in others}
        try:
            works = self._swap(tensor, received)
        except RuntimeError as error:
            raise self.broken(error) from error
        self.counter.bytes_sent += len(others) * tensor.numel() * tensor.element_size()
        return PendingMix(self, works, tensor, received, weights)

    def _swap(self, tensor: Tensor, received: Mapping[int, Tensor]) -> list[Any]:
        if self.backend == "nccl" and received:
            # One group of operations: NCCL runs a communicator's sends and receives one by one, and two islands that
            # both send first would wait for each other for ever.
            self._group._start_coalescing(self.device)
            for island, buffer in received.items():
                self._group.send([tensor], island, 0)
                self._group.recv([buffer], island, 0)
            return [self._group._end_coalescing(self.device)]
        works = []
        for island, buffer in received.items():
            works += [self._group.recv([buffer], island, 0), self._group.send([tensor], island, 0)]
        return works

    def finish(self, work: Any) -> None:
        """Wait for one operation of the group.

        Raises:
            PeerLost, DeadlineExceeded, TransportError: it failed; the group is dead.
        """
        try:
            if self.backend == "nccl":
                self._await_on_host(work)
            work.wait()
        except RuntimeError as error:
            raise self.broken(error) from error

    def _await_on_host(self, work: Any) -> None:
        # NCCL's wait() holds up the stream, not the host: with a peer gone the next synchronisation would hang until
        # the watchdog ends the process, without a word and without a checkpoint.
        deadline = time.monotonic() + self._timeout_seconds
        pause = 1e-4
        while not work.is_completed():
            if time.monotonic() > deadline:
                self._group.abort()
                raise RuntimeError("timed out")
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        if not work.is_success():
            self._group.abort()
            raise RuntimeError("NCCL reported an error")

    def broken(self, error: Exception) -> TransportError:
        """Mark the group dead; the typed error to raise, now and at every later call."""
        self._broken = self._broken or _typed(error, "exchanging with the other islands", self._timeout_seconds)
        return self._broken

    def lost(self) -> bool:
        """Whether a counterpart is known to be gone: the group is dead, or one of its connections is closed.

        Of NCCL's connections some end when its set-up is over, so that a closed one tells nothing.
        """
        return self._broken is not None or (self.backend == "gloo" and self.sockets.any_closed())

    def socket_bytes_sent(self) -> int | None:
        """What the kernel sent for this group; None with NCCL, whose data may take shared memory or InfiniBand."""
        return self.sockets.bytes_sent() if self.backend == "gloo" else None

    def close(self) -> None:
        """Give the connections back."""
        self._group = None

    def _build(self, store: Store, interface: str | None) -> Any:
        timeout = timedelta(seconds=self._timeout_seconds)
        if self.backend == "nccl":
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=False)
            # The watchdog ends the whole process: it comes only after our own deadline has had its chance.
            options._timeout = 2 * timeout
            with _errors_left_to_us():
                return dist.ProcessGroupNCCL(store, self.index, self.count, options)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = [_gloo_device(interface)]
        return dist.ProcessGroupGloo(store, self.index, self.count, options)


def _check(tensor: Tensor) -> None:
    if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a flat contiguous fp32 or fp64 tensor is needed, got {tensor.dtype} {tuple(tensor.shape)}")


def _sum_options() -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]
    return options


def _choose_backend(backend: str, device: torch.device) -> str:
    if backend == "auto":
        return "nccl" if device.type == "cuda" else "gloo"
    if backend == "nccl" and device.type != "cuda":
        raise ConfigError(
            "network.backend nccl needs GPUs", got=f"device {device.type}", fix="set network.backend=auto or gloo"
        )
    return backend


def _gloo_device(interface: str | None) -> Any:
    if interface is None:
        return dist.ProcessGroupGloo.create_default_device()
    present = sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else []
    if present and interface not in present:
        raise EnvironmentProblem(f"network.interface {interface!r} is not on this machine", allowed=", ".join(present))
    return dist.ProcessGroupGloo.create_device(interface=interface)


@contextlib.contextmanager
def _errors_left_to_us() -> Iterator[None]:
    # By default NCCL's watchdog ends the process when a peer is gone, in the middle of the save that follows. Read when
    # a group is built, so that the island's own groups keep what the user has set.
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _as_transport_errors(doing: str, timeout_seconds: float) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise _typed(error, doing, timeout_seconds) from error


def _typed(error: Exception, doing: str, timeout_seconds: float) -> TransportError:
    """Gloo raises plain RuntimeErrors and often blames an innocent peer, so its text decides nothing but the name of
    the error, and is passed on as what was said."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    kind = DeadlineExceeded if "imed out" in said or "timeout" in said else PeerLost
    return kind(
        f"{doing} failed (deadline {timeout_seconds:g} s)",
        got=said,
        fix="an island ended, hangs, or the link is too slow for network.exchange_timeout: look at the islands' logs",
    )
