"""What the outer methods need of a network: protocols only. Transport and simulation have the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from loco_train.errors import TransportError


class Pending(Protocol):
    """An exchange that is under way."""

    def wait(self) -> None:
        """Return when the result is in the tensor.

        Raises:
            TransportError: it failed; the tensor's content is undefined.
        """


@dataclass(frozen=True)
class Together:
    """Several exchanges; nothing to wait for where there is none."""

    parts: Sequence[Pending] = ()

    def wait(self) -> None:
        for part in self.parts:
            part.wait()


@dataclass(frozen=True)
class Failed:
    """An exchange that could not even set out; its wait says so."""

    error: TransportError

    def wait(self) -> None:
        raise self.error


def set_out(start: Callable[[], Pending]) -> Pending:
    """`start()`, with an error put off to the wait: raised at once on one rank, it would leave the others voting."""
    try:
        return start()
    except TransportError as error:
        return Failed(error)


class Communicator(Protocol):
    """A rank's counterparts: the ranks at its position in all islands.

    index: this island. count: islands. device: where tensors to be exchanged lie. down: pairs of islands of which all
    know that they cannot exchange now.
    """

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def down(self) -> frozenset[frozenset[int]]: ...

    def mean(self, tensor: Tensor) -> Pending:
        """Start replacing `tensor` (flat, fp32 or fp64) by its mean over all islands, bit-equal on each."""

    def gather(self, tensor: Tensor, out: Tensor) -> Pending:
        """Start copying the islands' tensors (flat [n]) into the rows of `out` ([M, n], contiguous, on `device`)."""

    def mix(self, tensor: Tensor, weights: Mapping[int, float]) -> Pending:
        """Start replacing `tensor` by the weighted sum of it and the other islands' tensors.

        weights: of this island's row, by island. Each island named must name this one in its own call. The sum is
        taken in the order of the islands, so that a pair gets bit-equal averages.
        """
