"""The outer step of one island: read the end, exchange, decide once, apply, write the start.

    views.read(end) -> pseudo-gradient -> [all islands finite?] -> exchange -> [all got it?] -> apply -> views.write

The brackets are the two decisions that all ranks of all islands take alike; nothing is changed before the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from loco_train.errors import NonFinite, TransportError
from loco_train.islands import ParameterViews
from loco_train.outer import OuterMethod, OuterState
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.progress import Progress
from loco_train.transport.ballot import OK, Ballot
from loco_train.transport.counterparts import Counterparts

NON_FINITE, FAILED = "non-finite", "failed"


@dataclass(frozen=True)
class OuterReport:
    """pseudo_gradient_norm: of the mean that was applied. spread_l2: this island's distance from the islands' mean
    before the step. bytes_sent, socket_bytes_sent: by this island in this round; see telemetry's RoundDone. All over
    the whole island, the same on every rank."""

    pseudo_gradient_norm: float = 0.0
    spread_l2: float = 0.0
    bytes_sent: int = 0
    socket_bytes_sent: int | None = None


class OuterStep(Protocol):
    """What the loop does between two rounds."""

    def begin(self) -> None:
        """The parameters are at the start of a run: make them the base."""

    def run(self, progress: Progress) -> OuterReport:
        """The outer step of round `progress.round`.

        Raises:
            TransportError, NonFinite: on every rank of this island; parameters and outer state are as before.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Live views of what a checkpoint holds of the outer side, by checkpoint key."""


class NoOuterStep:
    """Data parallelism: one island, whose parameters go on as they are."""

    def begin(self) -> None:
        pass

    def run(self, progress: Progress) -> OuterReport:
        return OuterReport()

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass
class SynchronousOuterStep:
    """The blocking outer step over all islands.

    scratch: flat [views.owned.numel] buffer on the state's device: the end, then the pseudo-gradient.
    """

    method: OuterMethod
    state: OuterState
    scratch: Tensor
    views: ParameterViews
    communicator: Counterparts
    ballot: Ballot
    clock: PhaseClock
    bytes_reported: int = 0
    socket_bytes_reported: int = 0

    def begin(self) -> None:
        self.views.read(self.state.base)

    def tensors(self) -> dict[str, Tensor]:
        return self.state.tensors(self.views.owned)

    def run(self, progress: Progress) -> OuterReport:
        with self.clock.phase("outer"):
            self.views.read(self.scratch)
            finite = self.method.pseudo_gradient(self.state, self.scratch)
        with self.clock.phase("wait"):
            self._require_finite(finite, progress)
            self._exchange(progress)
        with self.clock.phase("outer"):
            report = self._report()
            self.method.apply(self.state, self.scratch)
            self.views.write(self.state.base)
        return report

    def _require_finite(self, finite: bool, progress: Progress) -> None:
        bad = self.ballot.decide(f"{_name(progress)}/finite", OK if finite else NON_FINITE)
        if bad:
            raise NonFinite(
                f"round {progress.round}: NaN or infinity in the parameters of island {_islands(bad)}",
                got="nothing was exchanged; the other islands' parameters are untouched",
                fix="resume from the last checkpoint, with a lower optimizer.lr or optimizer.clip_grad_norm",
            )

    def _exchange(self, progress: Progress) -> None:
        """All islands got the mean, or all raise: an island that applied what another did not would drift away."""
        failure: TransportError | None = None
        try:
            self.method.exchange(self.scratch, self.communicator)
        except TransportError as error:
            failure = error
        bad = self.ballot.decide(f"{_name(progress)}/exchanged", FAILED if failure else OK)
        if bad:
            raise failure or TransportError(
                f"round {progress.round}: the exchange failed at island {_islands(bad)}",
                got="nothing of it was applied on any island",
                fix="look at that island's log, then start the run again: it resumes before this exchange",
            )

    def _report(self) -> OuterReport:
        """Sums over the island. The end is still in the masters, so the island's own progress is at hand."""
        counted, socket = self.communicator.counter.bytes_sent, self.communicator.sockets.bytes_sent()
        sums = torch.zeros(5, dtype=torch.float64)
        sums[2] = counted - self.bytes_reported
        sums[3] = (socket or 0) - self.socket_bytes_reported
        sums[4] = socket is None
        self.bytes_reported, self.socket_bytes_reported = counted, socket or 0
        state = self.views.state()
        for shard, first, end in self.views.owned.ranges():
            mean = self.scratch[first:end]
            own = self.state.base[first:end] - state[f"master/{shard.name}"].to(mean.device)
            sums[0] += mean.square().sum(dtype=torch.float64).cpu()
            sums[1] += (own - mean).square().sum(dtype=torch.float64).cpu()
        total = sums.to(self.views.device)
        dist.all_reduce(total)
        gradient, spread, payload, on_sockets, unknown = total.tolist()
        return OuterReport(
            pseudo_gradient_norm=math.sqrt(gradient),
            spread_l2=math.sqrt(spread),
            bytes_sent=int(payload),
            socket_bytes_sent=None if unknown else int(on_sockets),
        )


def _name(progress: Progress) -> str:
    return f"round-{progress.round}"


def _islands(bad: Mapping[int, str]) -> str:
    return ", ".join(map(str, sorted(bad)))
