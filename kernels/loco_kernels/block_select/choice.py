"""Which blocks mix2 takes: those whose disagreement is heard most for the bytes that they cost."""

from __future__ import annotations

from collections.abc import Mapping


def choose_blocks(js: Mapping[str, float], sizes: Mapping[str, int], *, budget: float) -> tuple[str, ...]:
    """The blocks to mix, in the order of `js`.

    js: by block, the JS distance from the consensus that its disagreement alone causes. sizes: of each, in bytes.
    budget: what all that are chosen may have together, in bytes. The most JS for a byte first, and what does not fit
    is passed over: greedy, so that not more than one block's worth is lost against the best choice.
    """
    left, chosen = budget, set()
    for block in sorted(js, key=lambda each: -js[each] / sizes[each]):
        # What causes nothing is not worth a byte.
        if js[block] > 0 and sizes[block] <= left:
            chosen.add(block)
            left -= sizes[block]
    return tuple(block for block in js if block in chosen)
