"""Blocks are chosen by the JS distance that they cause for a byte, within the budget."""

from itertools import chain, combinations

import pytest
from loco_kernels.block_select import choose_blocks

JS = {"embedding": 0.3, "layers.0": 0.2, "layers.1": 0.1, "final-norm": 0.01, "head": 0.3}
SIZES = {"embedding": 400, "layers.0": 200, "layers.1": 200, "final-norm": 1, "head": 300}


@pytest.mark.parametrize(
    ("budget", "chosen"),
    [
        (0, ()),
        (1, ("final-norm",)),
        (201, ("layers.0", "final-norm")),
        (300, ("layers.0", "final-norm")),
        # head and layers.0 are both worth 0.1 for a hundred bytes: the first in the model's order goes first.
        (500, ("layers.0", "layers.1", "final-norm")),
        (501, ("layers.0", "final-norm", "head")),
        (901, ("embedding", "layers.0", "final-norm", "head")),
        (900, ("layers.0", "layers.1", "final-norm", "head")),
        (1101, tuple(JS)),
    ],
)
def test_the_most_for_a_byte_within_the_budget(budget, chosen):
    found = choose_blocks(JS, SIZES, budget=budget)
    assert found == chosen
    assert sum(SIZES[block] for block in found) <= budget


def test_a_block_that_causes_nothing_is_left_out():
    assert choose_blocks({"a": 0.0, "b": 0.1}, {"a": 1, "b": 1}, budget=10) == ("b",)


@pytest.mark.parametrize("budget", range(1, 1102, 25))
def test_no_more_than_one_block_is_lost_against_the_best_choice(budget):
    found = sum(JS[block] for block in choose_blocks(JS, SIZES, budget=budget))
    every = chain.from_iterable(combinations(JS, count) for count in range(len(JS) + 1))
    best = max(sum(JS[b] for b in some) for some in every if sum(SIZES[b] for b in some) <= budget)
    assert best - found <= max(JS.values())
