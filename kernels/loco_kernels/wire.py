"""Wire formats: flat buffers as they travel between islands.

fp32 and bf16 are plain. int8 and int4 have one fp32 scale for each group of 128 elements: an element is its integer
times its group's scale. int4 is planar: byte j of a group holds element j in its low half and element j + 64 in its
high half, so that a GPU writes whole words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 128
# Largest integer of each format, symmetric around zero.
LARGEST = {"int8": 127, "int4": 7}
KINDS = ("fp32", "bf16", "int8", "int4")
# fp64 is what `Wire.around` makes of an oracle's tensor; it does not travel.
# Groups that are smaller than this everywhere are sent as zeros: their scale would be subnormal, which GPUs flush.
SMALLEST = 2.0**-119
# Beyond it 127 times the rounded scale may be infinite: a group with such an element, or with NaN, is sent as NaN.
HUGE = 2.0**127
_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "int4": torch.uint8,
}
_ALIGNMENT = 16


@dataclass(frozen=True)
class Wire:
    """One or more flat buffers of `numel` elements, each contiguous as it travels.

    buffer: uint8 [rows, bytes], the scales of a row first. values, scales: views of it; values [rows, numel] in fp32,
    bf16 or int8, or uint8 [rows, 64 * groups] for int4; scales fp32 [rows, groups], None for plain formats.
    """

    kind: str
    numel: int
    buffer: Tensor
    values: Tensor
    scales: Tensor | None

    @staticmethod
    def empty(kind: str, numel: int, *, device: torch.device | str = "cpu", rows: int = 1) -> Wire:
        """Of undefined content.

        Raises:
            ValueError: there is no such kind.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        groups = -(-numel // GROUP)
        dtype = _DTYPES[kind]
        scale_bytes = _aligned(4 * groups) if kind in LARGEST else 0
        count = groups * GROUP // 2 if kind == "int4" else numel
        buffer = torch.empty(rows, _aligned(scale_bytes + count * dtype.itemsize), dtype=torch.uint8, device=device)
        values = buffer[:, scale_bytes : scale_bytes + count * dtype.itemsize].view(dtype)
        scales = buffer[:, : 4 * groups].view(torch.float32) if kind in LARGEST else None
        return Wire(kind, numel, buffer, values, scales)

    @staticmethod
    def around(tensor: Tensor) -> Wire:
        """Of a flat [n] or stacked [rows, n] tensor, contiguous, in fp32, bf16 or fp64: its memory, not a copy."""
        rows = tensor if tensor.dim() == 2 else tensor[None]
        kind = next(kind for kind, dtype in _DTYPES.items() if dtype == tensor.dtype)
        return Wire(kind, rows.shape[1], rows.view(torch.uint8), rows, None)

    def row(self, index: int) -> Wire:
        """One of them, as a view."""
        one = slice(index, index + 1)
        scales = None if self.scales is None else self.scales[one]
        return Wire(self.kind, self.numel, self.buffer[one], self.values[one], scales)

    @property
    def largest(self) -> int:
        """The largest integer; 0 for plain formats."""
        return LARGEST.get(self.kind, 0)

    @property
    def rows(self) -> int:
        return len(self.buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of one row: what one buffer costs on the wire."""
        return self.buffer.shape[1]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
