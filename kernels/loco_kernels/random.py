"""Random numbers without a state: the same for an element wherever it lies and on every device."""

from __future__ import annotations

from torch import Tensor

# Finaliser of SplitMix64 (Steele, Lea, Flood 2014), as signed 64-bit numbers.
GAMMA = -0x61C8864680B583EB
MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
SHIFTS = (30, 27, 31)


def uniform(places: Tensor, key: int) -> Tensor:
    """fp32 in [0, 1), a multiple of 2**-24, for each of `places` (int64), by a counter-based hash."""
    x = places * GAMMA + key
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, 1), strict=True):
        x = (x ^ _shifted(x, shift)) * multiplier
    return _shifted(x, 40).float() / 2**24


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; int64's own one keeps the sign."""
    shifted: Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return shifted
