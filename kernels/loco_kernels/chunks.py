"""Passes over flat buffers on a CPU: chunks that stay in a core's cache between the operations."""

from __future__ import annotations

from torch import Tensor

# 1 MiB of fp32. Larger ones were as fast alone, and ten times slower beside another busy process.
CHUNK_ELEMENTS = 2**18


class Scratch:
    """Room for a chunk, in whole units of `unit` elements.

    used: the chunk. padded: with what fills its last unit, zeros.
    """

    def __init__(self, numel: int, unit: int, *, like: Tensor) -> None:
        """numel: of the buffer that is passed over."""
        self._unit = unit
        self._all = like.new_empty(-(-min(numel, CHUNK_ELEMENTS) // unit) * unit)
        self.used = self.padded = self._all

    def resized(self, length: int) -> Tensor:
        """`used`, for a chunk of this length; of undefined content."""
        self.padded = self._all[: -(-length // self._unit) * self._unit]
        self.padded[length:].zero_()
        self.used = self.padded[:length]
        return self.used
