"""Random choices that every island makes alike: hashes of where the run stands, no generator with a state.

A generator's state would have to be saved, and one that islands advance differently pairs islands that do not know of
it. A hash is the same in every version of every library, too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Draw:
    """What a choice depends on.

    seed: of the run. generation: of the membership, so that other islands draw anew. round: of the run. purpose: what
    is drawn for; mix1 and mix2 of one round draw independently of each other.
    """

    seed: int
    round: int
    generation: int = 0
    purpose: str = ""

    def for_purpose(self, purpose: str) -> Draw:
        return Draw(self.seed, self.round, self.generation, purpose)

    def permutation(self, count: int, *, at: object = "") -> list[int]:
        """A uniformly random order of range(count); `at` names one of several."""
        return sorted(range(count), key=lambda item: (self._hash(self.round, at, item), item))

    def left_out(self, count: int) -> int:
        """Of an odd number the one that stays alone this round: every one once in each `count` rounds."""
        block, place = divmod(self.round, count)
        order = sorted(range(count), key=lambda item: (self._hash("left out", block, item), item))
        return order[place]

    def _hash(self, *key: object) -> bytes:
        text = "/".join(map(str, (self.seed, self.generation, self.purpose, *key)))
        return hashlib.blake2b(text.encode(), digest_size=16).digest()
