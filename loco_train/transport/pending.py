"""Exchanges between islands that are under way; see `Counterparts`, which starts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loco_kernels import mix
from torch import Tensor

if TYPE_CHECKING:
    from loco_train.transport.counterparts import Counterparts


@dataclass(frozen=True)
class PendingMean:
    """A mean that is under way: wait, then the tensor holds it."""

    owner: Counterparts
    works: list[Any]
    buckets: list[Tensor]

    def wait(self) -> None:
        """Return when every bucket holds the mean.

        Raises:
            PeerLost, DeadlineExceeded, TransportError: the tensor's content is undefined and the group dead.
        """
        for work, bucket in zip(self.works, self.buckets, strict=True):
            self.owner.finish(work)
            # A power of two divides exactly; for other counts every island divides the same sum.
            bucket.div_(self.owner.count)


@dataclass(frozen=True)
class PendingGather:
    """A gathering that is under way: wait, then its rows hold the tensors."""

    owner: Counterparts
    works: list[Any]

    def wait(self) -> None:
        """Return when every row is there.

        Raises:
            PeerLost, DeadlineExceeded, TransportError: the rows' content is undefined and the group dead.
        """
        for work in self.works:
            self.owner.finish(work)


@dataclass(frozen=True)
class PendingMix:
    """A weighted sum that is under way: wait, then the tensor holds it."""

    owner: Counterparts
    works: list[Any]
    tensor: Tensor
    received: Mapping[int, Tensor]
    weights: Mapping[int, float]

    def wait(self) -> None:
        """Return when the tensor holds the sum.

        Raises:
            PeerLost, DeadlineExceeded, TransportError: the group is dead; the tensor is as it was.
        """
        for work in self.works:
            self.owner.finish(work)
        if self.received:
            terms = {**self.received, self.owner.index: self.tensor}
            # By island, so that both sides of a pair add in the same order and get the same bits.
            order = sorted(terms)
            mix([terms[island] for island in order], [self.weights[island] for island in order], out=self.tensor)
