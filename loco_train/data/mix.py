"""Several sources by weight: which source's which sample an ordinal stands for, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from loco_train.data.shuffle import permute
from loco_train.errors import DataError

CYCLE = 4096
_MIX_STREAM = -1


@dataclass(frozen=True)
class Located:
    """Of each ordinal: the source, and how many samples of that source came before it. int64, same shape."""

    source: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


class Mix:
    """Every 4096 samples hold each source in exact proportion, in one pseudo-random order that repeats.

    Raises:
        DataError: a source whose share is so small that it would never be read.
    """

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        self.counts = apportion(weights, total=CYCLE)
        for source, count in enumerate(self.counts):
            if count == 0:
                raise DataError(
                    f"data.train.{source}.weight is too small: the source would never be read",
                    got=weights[source],
                    allowed=f"at least 1/{CYCLE} of the sum of weights ({sum(weights):g})",
                )
        ordered = np.repeat(np.arange(len(self.counts)), self.counts)
        places = permute(np.arange(CYCLE), size=CYCLE, seed=seed, stream=_MIX_STREAM, epoch=0)
        self._source = ordered[places]
        self._before = np.zeros(CYCLE, dtype=np.int64)
        for source in range(len(self.counts)):
            mine = self._source == source
            self._before[mine] = np.arange(int(mine.sum()))

    def locate(self, ordinals: npt.NDArray[np.int64]) -> Located:
        """Source and position in it of each ordinal."""
        cycle, slot = np.divmod(ordinals, CYCLE)
        source = self._source[slot]
        return Located(source, cycle * np.array(self.counts)[source] + self._before[slot])


def apportion(weights: Sequence[float], *, total: int) -> tuple[int, ...]:
    """`total` in whole numbers in proportion to `weights`: by largest remainder, the first of equals first."""
    exact = [Fraction(weight) * total / sum(map(Fraction, weights)) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(counts)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return tuple(counts)
