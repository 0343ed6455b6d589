"""Streaming DiLoCo against its algorithm, written out fragment by fragment in NumPy in float64."""

import numpy as np
import pytest
import torch
from loco_kernels.block_select import Selection

from loco_train.config.load import load_run
from loco_train.outer import outer_method
from loco_train.outer.streaming import fragment_ranges
from loco_train.simulation.lockstep import LockStep
from loco_train.simulation.matrices import WholeMatrices
from loco_train.simulation.stacked_llama import Shape

ISLANDS, ROUNDS = 3, 11
TOLERANCE = 1e-12  # of sums in another order: 11 rounds of values below 10
SHAPE = Shape(layers=4, hidden=8, heads=2, ffn=16)


def method(*overrides: str):
    run = load_run("quickstart", ["method=streaming-diloco", f"islands.count={ISLANDS}", *overrides]).config
    layout = SHAPE.layout
    return outer_method(
        run.method, islands=ISLANDS, layout=layout, matrices=WholeMatrices(layout), layers=SHAPE.layers, tied=False
    )


def inner(number: int, start):
    """Contracts to a point of the island and the round."""
    generator = np.random.Generator(np.random.PCG64(number))
    return 0.5 * start + generator.standard_normal(start.shape)


def simulated(streaming):
    islands = LockStep.from_start(
        streaming, torch.zeros(SHAPE.layout.numel, dtype=torch.float64), islands=ISLANDS, seed=0
    )
    for number in range(ROUNDS):
        islands.round(number, lambda n, start: torch.from_numpy(inner(n, start.numpy())))
    return islands


def fragment(name: str, fragments: int) -> int:
    """Of a parameter: layers in turn, the embedding in the first, what follows the layers in the last."""
    if ".layers." in name:
        return int(name.split(".")[2]) % fragments
    return 0 if name.startswith("embedding") else fragments - 1


def oracle(fragments: int, *, kept: float = 0.5, lr: float = 0.4, momentum: float = 0.9):
    """arXiv 2501.18512, Algorithm 2, with tau one round: (parameters [M, n], base [n])."""
    size = SHAPE.layout.numel
    theta, base, v = np.zeros((ISLANDS, size)), np.zeros(size), np.zeros(size)
    under_way = None
    owner = np.concatenate([
        np.full(int(np.prod(shape)), fragment(name, fragments)) for name, shape in SHAPE.parameters.items()
    ])  # fmt: skip
    for number in range(ROUNDS):
        theta = inner(number, theta)
        if under_way is not None:
            mask, progress = under_way
            g = progress.mean(0)
            v[mask] = momentum * v[mask] + g
            base[mask] -= lr * (g + momentum * v[mask])
            theta[:, mask] = kept * theta[:, mask] + (1 - kept) * base[mask]
        mask = owner == number % fragments
        under_way = mask, base[mask] - theta[:, mask]
    return theta, base


@pytest.mark.parametrize("fragments", [1, 2, 3, 5])
def test_follows_the_papers_algorithm(fragments):
    islands = simulated(method(f"method.streaming.fragments={fragments}"))
    parameters, base = oracle(fragments)
    np.testing.assert_allclose(islands.parameters.numpy(), parameters, rtol=0, atol=TOLERANCE)
    for state in islands.states:
        np.testing.assert_allclose(state.base.numpy(), base, rtol=0, atol=TOLERANCE)
        assert torch.equal(state.base, islands.states[0].base)
    assert not torch.equal(*islands.parameters[:2])


def test_one_fragment_that_lands_whole_puts_all_islands_on_the_base():
    islands = simulated(method("method.streaming.fragments=1", "method.streaming.kept=0"))
    assert torch.equal(islands.parameters, torch.stack([state.base for state in islands.states]))


def test_each_round_sends_one_fragment():
    islands = simulated(method())
    every = fragment_ranges(SHAPE.layout, fragments=3)
    assert sum(end - first for ranges in every for first, end in ranges) == SHAPE.layout.numel
    landed = [Selection(every[number % 3]).numel for number in range(ROUNDS - 1)]
    # A ring all-reduce sends 2 (M - 1) / M of the fp64 buffer.
    wanted = sum(2 * (ISLANDS - 1) * 8 * numel // ISLANDS for numel in landed)
    assert islands.communicators[0].bytes_sent == wanted


def test_what_is_under_way_can_set_out_again():
    """A resume inside a round calls begin_round once more, with the state that was saved."""
    streaming = method()
    islands = simulated(streaming)
    sent = [state.sent.clone() for state in islands.states]
    islands.round(ROUNDS, lambda n, start: torch.from_numpy(inner(n, start.numpy())))
    after = islands.parameters
    again = simulated(streaming)
    for state in again.states:
        state.mixed.fill_(torch.nan)
    assert all(map(torch.equal, sent, (state.sent for state in again.states)))
    again.round(ROUNDS, lambda n, start: torch.from_numpy(inner(n, start.numpy())))
    assert torch.equal(after, again.parameters)
