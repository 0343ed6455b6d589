"""Weights of the peers: sound in every round, the same on every island, contracting as the papers say."""

import collections

import pytest
import torch

from loco_train.config.method import MixConfig
from loco_train.errors import ConfigError
from loco_train.outer.draw import Draw
from loco_train.outer.methods import peers, read_graph
from loco_train.outer.peers import ExponentialGraph, RandomCycle, RandomPair, Ring
from loco_train.outer.weights import Weights

KINDS = ["nobody", "all", "ring", "exponential", "rotating-exponential", "random-pair", "random-cycle"]


def weights_of(kind: str, islands: int, round: int = 0) -> Weights:
    return peers(MixConfig(peers=kind)).weights(islands, Draw(seed=1, round=round, purpose="mix2"))


@pytest.mark.parametrize("islands", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_symmetric_and_doubly_stochastic(kind, islands):
    for number in range(5):
        matrix = weights_of(kind, islands, number).matrix
        assert torch.equal(matrix, matrix.T)
        assert (matrix >= 0).all()
        # Rows of at most 16 weights below 1.
        torch.testing.assert_close(matrix.sum(1), torch.ones(islands, dtype=torch.float64), rtol=0, atol=1e-15)


def contraction(part, islands: int, rounds: int) -> float:
    """Mean over rounds and directions of |W x|^2 / |x|^2 for x of mean zero."""
    away = torch.eye(islands, dtype=torch.float64) - 1 / islands
    total = 0.0
    for number in range(rounds):
        mixed = part.weights(islands, Draw(seed=3, round=number)).matrix @ away
        total += float(mixed.square().sum()) / (islands - 1)
    return total / rounds


@pytest.mark.parametrize("islands", [8, 16, 32])
def test_random_peers_contract_as_in_theory(islands):
    """T5, GASLoC Proposition 1: exact for each single matrix, since all draws of a kind are permutations of one."""
    n = islands
    for part, expected in (
        (RandomPair(), (n / 2 - 1) / (n - 1)),
        (RandomCycle(), (n / 3 - 1) / (n - 1)),
        (RandomCycle(0.5), (3 * n / 8 - 1) / (n - 1)),
    ):
        assert contraction(part, n, 3) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("part", "first", "second"), [(RandomPair(), 1 / 2, 1 / 2), (RandomCycle(0.5), 1 / 2, 3 / 8)])
def test_the_mean_laplacian_of_random_peers_and_its_square(part, first, second):
    """T5: E L = a n / (n - 1) (I - 11^T / n) and E L^2 alike, with a = 1/2 and 1/2 for pairs, 1/2 and 3/8 for cycles.

    The diagonals are the same in every draw. An entry beside them that varies most is -1/2 in one of 7 draws and else
    0: 0.175 / sqrt(4000) = 0.0028 is its mean's deviation, and five of that are allowed.
    """
    n, away = 8, torch.eye(8, dtype=torch.float64) - 1 / 8
    total, squares = torch.zeros(8, 8, dtype=torch.float64), torch.zeros(8, 8, dtype=torch.float64)
    for number in range(4000):
        laplacian = torch.eye(n, dtype=torch.float64) - part.weights(n, Draw(seed=5, round=number)).matrix
        total += laplacian / 4000
        squares += laplacian @ laplacian / 4000
    torch.testing.assert_close(total, first * n / (n - 1) * away, rtol=0, atol=0.014)
    torch.testing.assert_close(squares, second * n / (n - 1) * away, rtol=0, atol=0.014)
    torch.testing.assert_close(squares.trace(), torch.tensor(second * n, dtype=torch.float64), rtol=0, atol=1e-11)


def test_a_hypercube_gives_everyone_the_mean_after_log2_rounds():
    product = torch.eye(8, dtype=torch.float64)
    for number in range(3):
        product = ExponentialGraph(rotating=True).weights(8, Draw(0, number)).matrix @ product
    torch.testing.assert_close(product, torch.full((8, 8), 1 / 8, dtype=torch.float64), rtol=0, atol=1e-15)


def test_a_rotation_of_pairs_has_the_own_weight_that_is_set():
    assert ExponentialGraph(rotating=True, self_weight=0.7).weights(8, Draw(0, 1)).rows[0] == pytest.approx(
        {0: 0.7, 2: 0.3}, abs=1e-15
    )


def test_two_peers_by_algorithm_1_and_by_the_laplacian():
    thirds, halves = (RandomCycle(w).weights(5, Draw(0, 0)).rows[0] for w in (None, 0.5))
    assert sorted(thirds.values()) == [1 / 3] * 3
    assert sorted(halves.values()) == [0.25, 0.25, 0.5]


def test_an_odd_number_leaves_each_island_out_once_in_as_many_rounds():
    alone = [
        next(i for i, row in enumerate(RandomPair().weights(7, Draw(2, number)).rows) if len(row) == 1)
        for number in range(21)
    ]
    assert [sorted(alone[first : first + 7]) for first in (0, 7, 14)] == [list(range(7))] * 3
    assert alone[:7] != alone[7:14]


def test_draws_depend_on_seed_generation_round_and_purpose_and_on_nothing_else():
    draws = [Draw(1, 2), Draw(2, 2), Draw(1, 3), Draw(1, 2, generation=1), Draw(1, 2, purpose="mix1")]
    orders = [tuple(draw.permutation(32)) for draw in draws]
    assert len(set(orders)) == len(draws)
    # Written down once: islands of another version, or another machine, must draw the same.
    assert Draw(1, 2, purpose="mix2").permutation(8) == GOLDEN


GOLDEN = [0, 3, 2, 6, 4, 1, 7, 5]


def test_every_pair_meets_about_equally_often():
    met = collections.Counter()
    for number in range(2800):
        for i, row in enumerate(RandomPair().weights(8, Draw(9, number)).rows):
            met.update((i, j) for j in row if j > i)
    # 28 pairs, each in 1 of 7 rounds: 400 +- 5 * sqrt(2800 * 1/7 * 6/7) = 93.
    assert len(met) == 28
    assert all(abs(count - 400) < 93 for count in met.values())


def test_pairs_meet_only_over_links():
    links = {(0, 1), (1, 2), (2, 3), (3, 4)}
    part = peers(MixConfig(peers="random-pair", links=sorted(links)))
    seen = set()
    for number in range(50):
        rows = part.weights(5, Draw(0, number)).rows
        seen |= {(i, j) for i, row in enumerate(rows) for j in row if j > i}
    assert seen == links


def test_a_failed_pair_keeps_its_own_on_both_sides():
    weights = Ring().weights(5, Draw(0, 0)).without({frozenset((1, 2))})
    assert weights.rows[1] == {0: 1 / 3, 1: 2 / 3}
    assert weights.rows[2] == {2: 2 / 3, 3: 1 / 3}
    assert weights.rows[4] == Ring().weights(5, Draw(0, 0)).rows[4]


def test_a_mean_that_cannot_be_had_is_had_by_nobody():
    assert Weights.mean(4).without({frozenset((1, 2))}) == Weights.identity(4)


def graph(tmp_path, text: str):
    path = tmp_path / "graph.yaml"
    path.write_text(text)
    return path


def test_a_graph_from_a_file(tmp_path):
    rows = "weights:\n- [0.5, 0.5, 0]\n- [0.5, 0.166667, 0.333333]\n- [0, 0.333333, 0.666667]\n"
    weights = read_graph(graph(tmp_path, rows))
    assert weights.neighbours(0) == (1,)
    # What a person rounded is made exact, so that nothing shrinks over the rounds.
    torch.testing.assert_close(weights.matrix.sum(1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-15)
    assert torch.equal(weights.matrix, weights.matrix.T)


def test_a_graph_whose_islands_keep_nothing_may_be_rounded_up(tmp_path):
    """Three islands that take the mean of the two others: 0.500002 twice would leave less than nothing for itself."""
    half = 0.500002
    text = f"weights: [[0, {half}, {half}], [{half}, 0, {half}], [{half}, {half}, 0]]"
    weights = read_graph(graph(tmp_path, text))
    torch.testing.assert_close(weights.matrix.sum(1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-15)
    assert (weights.matrix >= 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights: [[0.5, 0.5], [0.4, 0.6]]", "symmetric"),
        ("weights: [[0.5, 0.4], [0.4, 0.6]]", "row 0 sums to 0.9"),
        ("weights: [[1.5, -0.5], [-0.5, 1.5]]", "negative"),
        ("weights: [[1, 0], [0, 1]]", "no way from island 0 to 1"),
        ("weights: [[1, 0]]", "square(.|\n)*of length 2, number of rows 1"),
        ("weights: []", "no rows"),
        ("weights: [[0, 1], [1, 0]]", "swap their values"),
        ("weights: [[0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0]]", "two halves"),
        ("weights: [[nan, 1], [1, nan]]", "numbers"),
        ("weights: 3", "no graph"),
        ("edges: []", "no graph"),
        ("weights: [[", "no graph"),
    ],
)
def test_a_graph_that_no_method_may_mix_by(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read_graph(graph(tmp_path, text))


def test_a_graph_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="there is no graph file"):
        read_graph(tmp_path / "none.yaml")


def test_a_graph_of_another_number_of_islands(tmp_path):
    part = peers(MixConfig(peers="graph", graph=str(graph(tmp_path, "weights: [[0.5, 0.5], [0.5, 0.5]]"))))
    with pytest.raises(ConfigError, match="2 islands, and 3 islands"):
        part.weights(3, Draw(0, 0))
