"""What the outer methods need of a network: protocols only. Transport has the real ones."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Pending(Protocol):
    """An exchange that is under way."""

    def wait(self) -> None:
        """Return when the result is in the tensor.

        Raises:
            TransportError: it failed; the tensor's content is undefined.
        """


class Communicator(Protocol):
    """A rank's counterparts: the ranks at its position in all islands.

    index: this island. count: islands. device: where tensors to be exchanged lie.
    """

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def mean(self, tensor: Tensor) -> Pending:
        """Start replacing `tensor` (flat, fp32 or fp64) by its mean over all islands, bit-equal on each."""
