"""JS distance and L2 distance of islands from their consensus."""

import math

import numpy as np
import pytest
import torch

from loco_train.outer.health import js_distance, l2_distance


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plainly(island: np.ndarray, consensus: np.ndarray, top: int) -> float:
    """By the definition, in NumPy."""
    distances = []
    for one, other in zip(island, consensus, strict=True):
        p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (one, other))
        kept = np.argsort(-q)[:top]
        p, q = (np.append(x[kept], max(0.0, 1 - x[kept].sum())) for x in (p, q))
        a = (p + q) / 2
        kl = [sum(x * math.log(x / m) for x, m in zip(d, a, strict=True) if x > 0) for d in (p, q)]
        distances.append(math.sqrt(max(0.0, sum(kl) / 2 / math.log(2))))
    return float(np.mean(distances))


@pytest.mark.parametrize("top", [1, 7, 100])
def test_is_the_definition(top):
    one, other = logits(5, 50), logits(5, 50, seed=1)
    found = float(js_distance(one, other, top=top))
    assert found == pytest.approx(plainly(one.double().numpy(), other.double().numpy(), top), abs=1e-9)


def test_equal_distributions_have_none_and_disjoint_ones_are_at_1():
    one = logits(5, 200)
    assert float(js_distance(one, one + 3)) == pytest.approx(0, abs=1e-3)
    left, right = torch.full((1, 4), -1e4), torch.full((1, 4), -1e4)
    left[0, 0] = right[0, 3] = 0
    assert float(js_distance(left, right)) == pytest.approx(1, abs=1e-12)


def test_only_what_the_consensus_expects_is_told_apart():
    """Two that disagree only within the rest are the same."""
    consensus = torch.tensor([[5.0, 4.0, 0.0, 0.0, 0.0, 0.0]])
    island = torch.tensor([[5.0, 4.0, math.log(3.0), math.log(0.5), math.log(0.25), math.log(0.25)]])
    assert float(js_distance(island, consensus, top=2)) == pytest.approx(0, abs=1e-4)
    assert float(js_distance(island, consensus)) > 0.01


def test_l2():
    assert float(l2_distance(torch.tensor([[0.0, 0.0], [6.0, 8.0]]))) == pytest.approx(5)
