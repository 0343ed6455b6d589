"""Exchanges between islands that are under way; see `Counterparts`, which starts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from loco_train.transport.counterparts import Counterparts

# Of one pass of `weighted_sum`: 1 MiB of fp32 stays in a core's cache, and is all that it allocates.
_CHUNK_ELEMENTS = 2**18


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
            weighted_sum([(self.weights[island], terms[island]) for island in sorted(terms)], out=self.tensor)


def weighted_sum(terms: Sequence[tuple[float, Tensor]], *, out: Tensor) -> None:
    """Write the sum of weight * tensor (flat [n] each), added from first to last; `out` may be one of the tensors."""
    for first in range(0, out.numel(), _CHUNK_ELEMENTS):
        chunk = slice(first, first + _CHUNK_ELEMENTS)
        total = terms[0][0] * terms[0][1][chunk]
        for weight, tensor in terms[1:]:
            total.add_(tensor[chunk], alpha=weight)
        out[chunk].copy_(total)
