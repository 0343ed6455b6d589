"""Contraction and spectral gap against what is known of each graph."""

import itertools
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
    ("kind", "settings", "contraction", "chi"),
    [
        ("random-pair", {}, 3 / 7, 7 / 4),
        ("random-cycle", {}, (8 / 3 - 1) / 7, 3 * 7 / 16),
        ("random-cycle", {"self_weight": 0.5}, 2 / 7, 7 / 4),
    ],
)
def test_random_peers_have_the_expectation_of_the_theory(kind, settings, contraction, chi):
    """GASLoC Proposition 1; E W = I - n / (2 (n - 1)) (I - 11^T / n) for pairs, and for cycles with weights of 1/4."""
    measured = found(kind, 8, **settings)
    assert measured.contraction == pytest.approx(contraction, abs=1e-14)
    assert measured.chi == pytest.approx(chi, rel=1e-13)
    assert measured.sampled == 0


def test_an_odd_number_of_islands_in_pairs_contracts_by_half():
    # Three pairs of seven: W is a projection of rank 4, and 3 of its directions are apart from the mean.
    assert found("random-pair", 7).contraction == pytest.approx(3 / 6, abs=1e-14)


def test_a_rotation_counts_each_of_its_rounds():
    # A direction of the hypercube is kept by the rounds whose pairs agree in it: two of three, at the worst.
    hypercube = found("rotating-exponential", 8)
    assert hypercube.contraction == pytest.approx(2 / 3, abs=1e-14)
    assert hypercube.sampled == 0
    assert hypercube.links == 4


def test_chi_where_islands_overshoot():
    # 0.1 of the own and 0.9 of the other's: I - W has the eigenvalues 0 and 1.8.
    assert found("ring", 2, self_weight=0.1).chi == pytest.approx(1 / 1.8, rel=1e-14)
    assert found("ring", 2, self_weight=0.1).contraction == pytest.approx(0.8**2, abs=1e-14)


def test_an_estimate_over_links_is_near_the_expectation():
    """Every pair is a link here, so that the expectation is known: 3/7.

    The trace is the same in every round, so the worst direction of the mean can only be above. The noise of the mean is
    a symmetric matrix with entries of deviation 0.5 sqrt(1/7 6/7) / sqrt(2000) = 0.004, and 2 sqrt(8) of that, 0.022,
    is the edge of such a matrix's spectrum; half as much again is allowed.
    """
    measured = found("random-pair", 8, links=tuple(itertools.combinations(range(8), 2)))
    assert 0 <= measured.contraction - 3 / 7 < 0.033
    assert measured.sampled == 2000


def test_links_that_leave_two_parts_never_agree():
    apart = found("random-pair", 4, links=((0, 1), (2, 3)))
    assert math.isinf(apart.chi)
    assert apart.contraction == pytest.approx(1, abs=1e-12)


def test_one_island():
    assert found("all", 1).contraction == 0
