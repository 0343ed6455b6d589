"""A pseudo-random permutation of [0, size) that is computed, not stored.

A Feistel network is a bijection on pairs of halves whatever its round function is (Luby and Rackoff, SIAM J. Comput.
17(2), 1988); values that fall outside [0, size) are sent through again until they fall inside (cycle walking, Black
and Rogaway, CT-RSA 2002), which keeps it a bijection on [0, size).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_ROUNDS = 6


def permute(indices: npt.NDArray[np.int64], *, size: int, seed: int, stream: int, epoch: int) -> npt.NDArray[np.int64]:
    """Where the permutation of [0, size) that belongs to (seed, stream, epoch) sends `indices`; same shape.

    Memory and time do not depend on `size`, and any position is reached at once.
    """
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    keys = _round_keys(seed, stream, epoch)
    values = indices.astype(np.uint64)
    outside = np.ones(values.shape, dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], keys=keys, half_bits=half_bits)
        outside = values >= np.uint64(size)
    return values.astype(np.int64)


@lru_cache(maxsize=256)
def _round_keys(seed: int, stream: int, epoch: int) -> tuple[int, ...]:
    digest = hashlib.shake_256(f"shuffle {seed} {stream} {epoch}".encode()).digest(8 * _ROUNDS)
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))


def _feistel(values: npt.NDArray[np.uint64], *, keys: tuple[int, ...], half_bits: int) -> npt.NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + np.uint64(key)) & mask)
    return (left << shift) | right


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); uint64 arithmetic wraps."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
