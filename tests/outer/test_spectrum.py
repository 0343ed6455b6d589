"""Contraction and spectral gap against what is known of each graph."""

import math

import pytest

from loco_train.config.method import MixConfig
from loco_train.outer.methods import peers
from loco_train.outer.spectrum import measure


def found(kind: str, islands: int, **settings):
    return measure(peers(MixConfig(peers=kind, **settings)), islands=islands, seed=0)


def test_everyone_agrees_at_once_and_nobody_never():
    assert found("all", 8).contraction == pytest.approx(0, abs=1e-14)
    assert found("all", 8).chi == pytest.approx(1, abs=1e-13)
    assert found("nobody", 8).contraction == pytest.approx(1, abs=1e-14)
    assert math.isinf(found("nobody", 8).chi)


def test_a_ring_has_the_eigenvalues_of_a_circulant_matrix():
    second = 0.5 + 0.5 * math.cos(2 * math.pi / 8)
    ring = found("ring", 8, self_weight=0.5)
    assert ring.contraction == pytest.approx(second**2, abs=1e-14)
    assert ring.chi == pytest.approx(1 / (1 - second), rel=1e-12)
    assert ring.links == 8


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [("random-pair", {}, 3 / 7), ("random-cycle", {}, (8 / 3 - 1) / 7), ("random-cycle", {"self_weight": 0.5}, 2 / 7)],
)
def test_random_peers_are_near_their_expectation(kind, settings, expected):
    # The worst direction of a mean over 1000 rounds is above the expectation, by some 1 / sqrt(1000).
    assert 0 <= found(kind, 8, **settings).contraction - expected < 0.05


def test_links_that_leave_two_parts_never_agree():
    apart = found("random-pair", 4, links=((0, 1), (2, 3)))
    assert math.isinf(apart.chi)
    assert apart.contraction == pytest.approx(1, abs=1e-12)


def test_one_island():
    assert found("all", 1).contraction == 0
