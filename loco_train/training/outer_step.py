"""The outer step of one island: read the end, exchange, decide once, apply, write the start.

    mix1 sets out -> inner steps -> views.read(end) -> contribution -> [finite?] -> mix2, mix1 arrives -> [all got it?]
    -> pseudo-gradient -> update -> views.write(start)

The brackets are the two decisions that all ranks of all islands that exchange take alike; nothing is changed before
the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from loco_kernels import Selection, squares
from torch import Tensor

from loco_train.errors import IslandMismatch, NonFinite, TransportError
from loco_train.islands import ParameterViews
from loco_train.outer import Draw, OuterMethod, OuterState, Pending, Together, set_out
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.byte_count import ByteCount
from loco_train.training.progress import Progress
from loco_train.transport.ballot import DIFFERS, OK, Ballot
from loco_train.transport.counterparts import Counterparts

NON_FINITE, STUCK, FAILED = "non-finite", "stuck", "failed"


@dataclass(frozen=True)
class OuterReport:
    """pseudo_gradient_norm: of what the outer optimizer received. spread_l2: this island's distance from the islands'
    mean before the step; None where the method gives no mean. bytes_sent, socket_bytes_sent: by this island since the
    last report; see telemetry's RoundDone. All over the whole island, the same on every rank."""

    pseudo_gradient_norm: float = 0.0
    spread_l2: float | None = None
    bytes_sent: int = 0
    socket_bytes_sent: int | None = None


@dataclass(frozen=True)
class Consensus:
    """What the mean of the islands cost to get. distance: of this island from it, L2. bytes_sent: by this island."""

    distance: float = 0.0
    bytes_sent: int = 0


@dataclass(frozen=True)
class OwnAndMean:
    """Flat buffers [views.owned.numel]: the island's own parameters, and the mean of the islands."""

    own: Tensor
    mean: Tensor

    @contextmanager
    def mean_inside(self, views: ParameterViews) -> Iterator[None]:
        """Inside the block the engine has the mean, after it its own again. Collective over the island."""
        views.write(self.mean)
        try:
            yield
        finally:
            views.write(self.own)


class OuterStep(Protocol):
    """What the loop does between two rounds."""

    def begin(self) -> None:
        """The parameters are at the start of a run: make them the base."""

    def begin_round(self, progress: Progress) -> None:
        """The round's inner steps follow: what travels behind them sets out. Also after a resume inside the round."""

    def run(self, progress: Progress, *, learned: bool = True) -> OuterReport:
        """The outer step of round `progress.round`. learned: whether any step of the round had finite gradients here.

        Raises:
            TransportError, NonFinite: on every rank of this island; parameters and outer state are as before.
        """

    def consensus(self, progress: Progress) -> AbstractContextManager[Consensus]:
        """Inside the block the parameters are the mean of the islands. Collective over the islands."""

    def tensors(self) -> dict[str, Tensor]:
        """Live views of what a checkpoint holds of the outer side, by checkpoint key."""


class NoOuterStep:
    """Data parallelism: one island, whose parameters go on as they are."""

    def begin(self) -> None:
        pass

    def begin_round(self, progress: Progress) -> None:
        pass

    def run(self, progress: Progress, *, learned: bool = True) -> OuterReport:
        if not learned:
            raise _non_finite(progress, "this island", "gradients in every step of the round")
        return OuterReport()

    @contextmanager
    def consensus(self, progress: Progress) -> Iterator[Consensus]:
        yield Consensus()

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass
class ExchangingOuterStep:
    """The outer step with other islands.

    scratch: flat [views.owned.numel] buffer on the state's device: the end, then what travels, then the
    pseudo-gradient. blocking, behind: counterparts for mix2, and for mix1, which is under way at the same time; one
    and the same where the method has no mix1.
    """

    method: OuterMethod
    state: OuterState
    scratch: Tensor
    views: ParameterViews
    blocking: Counterparts
    behind: Counterparts
    ballot: Ballot
    clock: PhaseClock
    seed: int
    mix1: Pending = field(default_factory=Together)
    counted: ByteCount = field(init=False)

    def __post_init__(self) -> None:
        self.counted = ByteCount(list({id(c): c for c in (self.blocking, self.behind)}.values()))

    def begin(self) -> None:
        self.views.read(self.state.base)

    def begin_round(self, progress: Progress) -> None:
        draw = self._draw(progress)
        self.mix1 = set_out(lambda: self.method.begin_round(self.state, draw, self.behind))

    def tensors(self) -> dict[str, Tensor]:
        return self.state.tensors(self.views.owned)

    def run(self, progress: Progress, *, learned: bool = True) -> OuterReport:
        with self.clock.phase("outer"):
            self.views.read(self.scratch)
            finite = self.method.contribution(self.state, self.scratch)
        with self.clock.phase("wait"):
            self._require_finite(finite, learned, progress)
            self._exchange(progress)
        with self.clock.phase("outer"):
            draw = self._draw(progress)
            gradient = self.method.pseudo_gradient(self.state, self.scratch, draw)
            report = self._report(gradient)
            self.views.write(self.method.update(self.state, gradient, self.scratch, draw))
        return report

    @contextmanager
    def consensus(self, progress: Progress) -> Iterator[Consensus]:
        if self.method.keeps_islands_equal:
            yield Consensus()
            return
        with self.counted.apart(self.blocking) as sent:
            found = self.own_and_mean(progress, "consensus")
        apart = float((found.own - found.mean).square().sum(dtype=torch.float64))
        distance, total_sent = over_island([apart, sent.counted], self.views)
        with found.mean_inside(self.views):
            yield Consensus(math.sqrt(distance), int(total_sent))

    def own_and_mean(self, progress: Progress, purpose: str) -> OwnAndMean:
        """This rank's owned masters as they are, and their mean over the islands. Collective over the islands."""
        own = torch.zeros_like(self.scratch)
        self.views.read(own)
        mean = own.to(self.blocking.device, copy=True)
        pending = set_out(lambda: self.blocking.mean(mean))
        self._all_or_nobody(f"{_name(progress)}/{purpose}", pending, voters=None)
        return OwnAndMean(own, mean.to(own.device))

    def of_every_island(self, progress: Progress, purpose: str, values: Sequence[float]) -> Tensor:
        """[islands, values] fp64 on the CPU, the same bits on every rank of every island.

        values: the same on every rank of this island. Collective over the islands.
        """
        # Gathered and not averaged: the order of a sum may differ between the groups of an island's ranks.
        mine = torch.tensor(values, dtype=torch.float64, device=self.blocking.device)
        every = mine.new_empty(self.blocking.count, len(mine))
        pending = set_out(lambda: self.blocking.gather(mine, every))
        self._all_or_nobody(f"{_name(progress)}/{purpose}", pending, voters=None)
        return every.cpu()

    def _draw(self, progress: Progress) -> Draw:
        return Draw(self.seed, progress.round)

    def _voters(self, progress: Progress) -> list[int]:
        """The islands that this one exchanges with at the outer step: only for them it waits."""
        if self.method.keeps_bases_equal:
            return list(range(self.blocking.count))
        _, weights = self.method.weights(self.blocking.count, self._draw(progress))
        return list(weights.rows[self.blocking.index])

    def _require_finite(self, finite: bool, learned: bool, progress: Progress) -> None:
        verdict, digest = NON_FINITE if not finite else OK if learned else STUCK, None
        if self.method.keeps_bases_equal:
            # A sum of the bits as integers: exact in any order, and one pass over the memory.
            digest = int(self.state.base.view(torch.int32).sum())
        bad = self.ballot.decide(f"{_name(progress)}/finite", verdict, voters=self._voters(progress), digest=digest)
        if DIFFERS in bad.values():
            raise IslandMismatch(
                f"round {progress.round}: the parameters at the start of the round are not equal on all islands",
                got=f"others at island {_islands(bad)} than here; nothing was exchanged",
                fix="this method keeps them equal to the last bit: look for unequal hardware or libraries, or damaged "
                "memory, and resume from a checkpoint of an earlier round",
            )
        if bad:
            what = "parameters" if NON_FINITE in bad.values() else "gradients in every step of the round"
            raise _non_finite(progress, f"island {_islands(bad)}", what)

    def _exchange(self, progress: Progress) -> None:
        draw = self._draw(progress)
        mix2 = set_out(lambda: self.method.exchange(self.state, self.scratch, draw, self.blocking))
        self._all_or_nobody(f"{_name(progress)}/exchanged", Together([mix2, self.mix1]), voters=self._voters(progress))

    def _all_or_nobody(self, key: str, pending: Pending, *, voters: list[int] | None) -> None:
        """All got the result, or all raise: an island that applied what another did not would drift away."""
        failure: TransportError | None = None
        try:
            pending.wait()
        except TransportError as error:
            failure = error
        bad = self.ballot.decide(key, FAILED if failure else OK, voters=voters)
        if bad:
            raise failure or TransportError(
                f"{key}: the exchange failed at island {_islands(bad)}",
                got="nothing of it was applied on any island that exchanged with it",
                fix="look at that island's log, then start the run again: it resumes before this exchange",
            )

    def _report(self, gradient: Tensor) -> OuterReport:
        """Sums over the island. The end is still in the masters, so the island's own progress is at hand."""
        # Padding is zero.
        norm, spread = float(squares(gradient, [Selection(((0, len(gradient)),))])), 0.0
        known = self.method.gives_mean
        state = self.views.state() if known else {}
        for shard, first, end in self.views.owned.ranges() if known else []:
            mean = gradient[first:end]
            own = self.state.base[first:end] - state[f"master/{shard.name}"].to(mean.device)
            spread += float((own - mean).square().sum(dtype=torch.float64))
        sent, on_sockets = self.counted.take()
        unknown = float(on_sockets is None)
        sums = over_island([norm, spread, sent, on_sockets or 0, unknown], self.views)
        return OuterReport(
            pseudo_gradient_norm=math.sqrt(sums[0]),
            spread_l2=math.sqrt(sums[1]) if known else None,
            bytes_sent=int(sums[2]),
            socket_bytes_sent=None if sums[4] else int(sums[3]),
        )


def over_island(values: list[float], views: ParameterViews) -> list[float]:
    """Each value summed over the ranks of the island; the same on all of them."""
    total = torch.tensor(values, dtype=torch.float64).to(views.device)
    dist.all_reduce(total)
    summed: list[float] = total.tolist()
    return summed


def _non_finite(progress: Progress, who: str, what: str) -> NonFinite:
    return NonFinite(
        f"round {progress.round}: NaN or infinity in the {what} of {who}",
        got="nothing was exchanged; the other islands' parameters are untouched",
        fix="resumed as it is, the run would come to the same: start one with a run_dir of its own and a lower "
        "optimizer.lr or optimizer.clip_grad_norm",
    )


def _name(progress: Progress) -> str:
    return f"round-{progress.round}"


def _islands(bad: Mapping[int, str]) -> str:
    return ", ".join(map(str, sorted(bad)))
