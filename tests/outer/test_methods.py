"""Every named method against its paper's algorithm, written out in NumPy in float64; identities between them."""

import functools
import itertools

import numpy as np
import pytest
import torch

from loco_train.config.load import available, load_run
from loco_train.config.schema import RunConfig
from loco_train.outer import OuterMethod, outer_method
from loco_train.outer.draw import Draw
from loco_train.outer.merging import IsoCTS, Ties, tsv_m
from loco_train.outer.methods import with_mix2
from loco_train.shards import FlatLayout, Partition, Shard
from loco_train.simulation.lockstep import LockStep, no_failures
from loco_train.simulation.matrices import WholeMatrices
from loco_train.simulation.quadratic import Quadratic, run_quadratic

# Some 12 rounds of 4 steps with roundings of values below 10, in another order: 12 * 10 * 10 * 2**-53 = 1.3e-13, and
# what momentum makes of it.
TOLERANCE = 1e-12


def settings(name: str, islands: int, *overrides: str) -> RunConfig:
    count = 1 if name == "data-parallel" else islands
    return load_run("quickstart", [f"method={name}", f"islands.count={count}", *overrides]).config


def simulate(name: str, *overrides: str, islands: int = 8, steps=4, failures=no_failures):
    """(problem, rounds, final parameters [M, n])."""
    inner_steps = [steps] * islands if isinstance(steps, int) else steps
    problem = Quadratic.seeded(islands=islands, shape=(6, 4), seed=0, inner_steps=inner_steps, inner_lr=0.05)
    return problem, *run_quadratic(settings(name, islands, *overrides), problem, rounds=12, seed=0, failures=failures)


def composed(name: str, numel: int, *overrides: str, islands: int = 8) -> OuterMethod:
    """The method over the gain of a norm, which no aggregator takes for a matrix."""
    layout = FlatLayout((Shard("decoder.final_layernorm.weight", (numel,), Partition(), 0, numel),), (0,), numel)
    config = settings(name, islands, *overrides).method
    return outer_method(config, islands=islands, layout=layout, matrices=WholeMatrices(layout), layers=2, tied=False)


def descend(problem, start):
    """[M, n] ends, in NumPy."""
    end = start.copy()
    for island, steps in enumerate(problem.inner_steps):
        a, c = problem.curvature[island].numpy().ravel(), problem.center[island].numpy().ravel()
        for _ in range(steps):
            end[island] = end[island] - problem.inner_lr * a * (end[island] - c)
    return end


def sgd(x, v, g, *, kind, lr, momentum):
    """torch.optim.SGD's update with dampening 0: new (x, v)."""
    if kind == "sgd":
        return x - lr * g, v
    v = momentum * v + g
    return x - lr * (g + momentum * v if kind == "nesterov" else v), v


def oracle(problem, rounds, update):
    """Final [M, n]; update: (start, end, v, W1, W2) -> (start', v')."""
    start = np.zeros(problem.center.flatten(1).shape)
    v = np.zeros_like(start)
    for each in rounds:
        start, v = update(start, descend(problem, start), v, each.mix1.numpy(), each.mix2.numpy())
    return start


def iso(matrix):
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return s.mean() * u @ vt


def newton_schulz(matrix):
    """The paper's five steps, with the trace as the scale."""
    x = matrix.T / np.linalg.norm(matrix)  # [4, 6]: wide
    for a, b, c in [
        (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012),
    ]:  # fmt: skip
        s = x @ x.T
        x = a * x + b * s @ x + c * s @ s @ x
    return x.T * (x.T * matrix).sum() / 4


def isoloco_fast(x, y, v, w1, w2, *, lr=1.8, momentum=0.8):
    g = np.broadcast_to(newton_schulz((x - y).mean(0).reshape(6, 4)).ravel(), x.shape)
    return sgd(x, v, g, kind="nesterov", lr=lr, momentum=momentum)


def diloco(x, y, v, w1, w2):
    g = np.broadcast_to((x - y).mean(0), x.shape)
    return sgd(x, v, g, kind="nesterov", lr=0.7, momentum=0.9)


def isoloco(x, y, v, w1, w2, *, lr=1.8, momentum=0.8):
    g = np.broadcast_to(iso((x - y).mean(0).reshape(6, 4)).ravel(), x.shape)
    return sgd(x, v, g, kind="nesterov", lr=lr, momentum=momentum)


def tuned(name, islands):
    """IsoLoCo's outer lr and momentum of few islands."""
    few = {1: (1.6, 0.7), 2: (1.7, 0.8)}
    return dict(zip(("lr", "momentum"), few[islands], strict=True)) if "iso" in name and islands in few else {}


def gasloc(x, y, v, w1, w2):
    return sgd(x, v, x - w2 @ y, kind="nesterov", lr=0.8, momentum=0.7)


def factored(z, y, v, w1, w2):
    return sgd(w1 @ z, v, -(w2 @ (y - z)), kind="nesterov", lr=0.7, momentum=0.9)


def factored_s(z, y, v, w1, w2):
    return sgd(w1 @ z, w1 @ v, -(w2 @ (y - z)), kind="nesterov", lr=0.7, momentum=0.9)


def factored_iso(z, y, v, w1, w2, *, lr=1.8, momentum=0.8):
    mixed = w2 @ (z - y)
    g = np.stack([iso(row.reshape(6, 4)).ravel() for row in mixed])
    return sgd(w1 @ z, v, g, kind="nesterov", lr=lr, momentum=momentum)


def local_dadam(x, y, v, w1, w2):
    return w1 @ x + (y - x), v


def noloco(x, y, m, w1, w2):
    m = 0.5 * m + 0.7 * (w2 @ (y - x)) + 0.7 * (w2 @ x - x)
    return x + m, m


def slowmo(x, y, u, w1, w2):
    """With the inner lr gamma = 0.05: u = beta u + (x - mean y) / gamma; x - alpha gamma u."""
    u = 0.5 * u + (x - y.mean(0)) / 0.05
    return x - 1.0 * 0.05 * u, u


ORACLES = {
    "diloco": diloco,
    "isoloco": isoloco,
    "isoloco-fast": isoloco_fast,
    **dict.fromkeys(("gasloc-complete", "gasloc-ring", "gasloc-1peer", "gasloc-2peer"), gasloc),
    **dict.fromkeys((n for n in available("methods") if n.startswith("factored")), factored),
    **dict.fromkeys((n for n in available("methods") if n.startswith("factored-global-m1s")), factored_s),
    "factored-iso": factored_iso,
    "local-dadam": local_dadam,
    "noloco": noloco,
    "slowmo": slowmo,
}


@pytest.mark.parametrize("islands", [1, 2, 7, 8])
@pytest.mark.parametrize("name", ORACLES)
def test_follows_the_papers_algorithm(name, islands):
    problem, rounds, final = simulate(name, islands=islands)
    wanted = oracle(problem, rounds, functools.partial(ORACLES[name], **tuned(name, islands)))
    np.testing.assert_allclose(final.numpy(), wanted, rtol=0, atol=TOLERANCE)


def test_every_named_method_has_an_oracle():
    assert set(available("methods")) - set(ORACLES) == {"data-parallel", "streaming-diloco"}


@pytest.mark.parametrize("name", [*ORACLES, "streaming-diloco"])
def test_what_a_round_tells_is_what_it_did(name):
    problem, rounds, _ = simulate(name)
    for each in rounds:
        for mix in (each.mix1, each.mix2):
            assert torch.equal(mix, mix.T)
            torch.testing.assert_close(mix.sum(1), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-15)
        np.testing.assert_allclose(each.end.numpy(), descend(problem, each.start.numpy()), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("gasloc-complete",), ("diloco", "method.outer.lr=0.8", "method.outer.momentum=0.7")),
        (("factored-global-m1", "method.mix1.peers=nobody", "method.mix2.peers=all"), ("diloco",)),
        (("gasloc-1peer", "method.mix2.peers=all"), ("gasloc-complete",)),
    ],
)
def test_the_same_method_by_two_names(one, other):
    """T1, T2: GASLoC on a complete graph, and Factored with mix1 nobody and mix2 all, are DiLoCo."""
    (_, _, first), (_, _, second) = simulate(*one), simulate(*other)
    torch.testing.assert_close(first, second, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", [n for n in ORACLES if "iso" not in n and n != "local-dadam"])
def test_one_island_is_inner_training_and_its_outer_optimizer(name):
    """T3."""
    method = composed(name, 64, islands=1)
    problem, _, final = simulate(name, islands=1)
    x = torch.nn.Parameter(torch.zeros(24, dtype=torch.float64))
    optimizer = torch.optim.SGD(
        [x], lr=method.optimizer.lr, momentum=method.optimizer.momentum, nesterov=method.optimizer.kind == "nesterov"
    )
    for _ in range(12):
        x.grad = x.detach() - torch.from_numpy(descend(problem, x.detach().numpy()[None])[0])
        optimizer.step()
    torch.testing.assert_close(final[0], x.detach(), rtol=0, atol=TOLERANCE)


def test_isoloco_on_a_model_without_matrices_is_diloco():
    ends = torch.randn(8, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    results = []
    for name in ("isoloco", "diloco"):
        method = composed(name, 100, "method.outer.lr=0.7", "method.outer.momentum=0.9")
        islands = LockStep.from_start(method, torch.zeros(100, dtype=torch.float64), islands=8, seed=0)
        for number in range(3):
            islands.round(number, lambda _, start: 0.5 * start + ends)
        results.append(islands.parameters)
    assert torch.equal(*results)


MIXES = ["all", "ring", "exponential", "rotating-exponential", "random-pair", "random-cycle"]


@pytest.mark.parametrize("peers", MIXES)
@pytest.mark.parametrize("islands", [2, 5, 8])
def test_gossip_without_momentum_keeps_the_mean(peers, islands):
    """T4: with lr 1 and momentum 0 the mean of the starts is the mean of the ends."""
    plain = ("method.outer.lr=1", "method.outer.momentum=0", f"method.mix2.peers={peers}")
    _, rounds, final = simulate("gasloc-1peer", *plain, islands=islands)
    for each, start in zip(rounds, [*(r.start for r in rounds[1:]), final], strict=True):
        torch.testing.assert_close(start.mean(0), each.end.mean(0), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["gasloc-1peer", "gasloc-2peer", "factored-local-m1m2", "factored-global-m1-local-m2"])
def test_a_failed_exchange_is_undone_on_both_sides_and_the_mean_kept(name):
    """T10, as far as the arithmetic goes: nothing passes between the halves, and each side keeps its own."""
    across = {frozenset((i, j)) for i in range(4) for j in range(4, 8)}
    problem, rounds, final = simulate(name, failures=lambda number: across if number == 5 else ())
    assert not rounds[5].mix2[:4, 4:].any()
    assert rounds[4].mix2[:4, 4:].any()
    np.testing.assert_allclose(rounds[5].mix2.sum(0).numpy(), 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(final.numpy(), oracle(problem, rounds, ORACLES[name]), rtol=0, atol=TOLERANCE)


def test_a_change_of_the_blocks_keeps_the_graph_that_was_read(tmp_path):
    """A file that was edited meanwhile, or is gone, must not give one island other peers than the rest."""
    path = tmp_path / "graph.yaml"
    path.write_text("weights: [[0.6, 0.4], [0.4, 0.6]]")
    chosen = [f"method.mix2={{peers: graph, graph: {path}, blocks: [head]}}"]
    method = composed("factored-global-m1-local-m2", 8, *chosen, islands=2)
    path.unlink()
    mix = settings("factored-global-m1-local-m2", 2, *chosen).method.mix2.model_copy(update={"blocks": None})
    wide = with_mix2(method, mix, layout=FlatLayout((), (), 0), layers=2, tied=False)
    assert wide.mix2.weights(2, Draw(0, 0)).rows[0] == {0: 0.6, 1: 0.4}
    assert (method.mix2.ranges, wide.mix2.ranges) == ((), None)


def test_unequal_inner_steps():
    steps = [4, 4, 2, 1, 4, 3, 4, 4]
    problem, rounds, final = simulate("gasloc-2peer", steps=steps)
    np.testing.assert_allclose(final.numpy(), oracle(problem, rounds, gasloc), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["diloco", "factored-local-m1m2", "factored-global-m1"])
def test_by_tokens_the_mean_of_the_islands_is_weighted_by_their_inner_steps(name):
    steps = [4, 4, 2, 1, 4, 3, 4, 4]
    plain = ("method.outer.lr=1", "method.outer.momentum=0", "method.weighting=tokens", f"method.inner_steps={steps}")
    _, rounds, final = simulate(name, *plain, steps=steps)
    share = torch.tensor(steps, dtype=torch.float64)[:, None] / sum(steps)
    for each, start in zip(rounds, [*(r.start for r in rounds[1:]), final], strict=True):
        progress = (share * (each.end - each.start)).sum(0)
        torch.testing.assert_close(start.mean(0), each.start.mean(0) + progress, rtol=0, atol=TOLERANCE)


def test_by_tokens_with_equal_steps_changes_nothing():
    (_, _, first), (_, _, second) = (simulate("diloco", *o) for o in ((), ("method.weighting=tokens",)))
    assert torch.equal(first, second)


MERGED = {"ties": Ties(0.1), "tsv-m": tsv_m, "iso-cts": IsoCTS(0.8)}


@pytest.mark.parametrize("kind", MERGED)
def test_an_aggregator_of_all_islands_gets_what_each_has_made(kind):
    """The merging functions have their own oracles: tests/outer/test_merging.py."""

    def merged(x, y, v, w1, w2):
        g = MERGED[kind](torch.from_numpy(x - y).view(8, 6, 4)).numpy().ravel()
        return sgd(x, v, np.broadcast_to(g, x.shape), kind="nesterov", lr=0.7, momentum=0.9)

    problem, rounds, final = simulate("diloco", f"method.aggregator.kind={kind}")
    np.testing.assert_allclose(final.numpy(), oracle(problem, rounds, merged), rtol=0, atol=TOLERANCE)
    assert torch.equal(final, final[:1].expand_as(final))


def test_dare_sends_each_element_doubled_or_not_at_all_where_half_are_dropped():
    _, rounds, final = simulate("diloco", "method.aggregator.kind=dare", "method.aggregator.dropped=0.5")
    assert torch.equal(final, final[:1].expand_as(final))
    subsets = torch.tensor(list(itertools.product((0, 1), repeat=8)), dtype=torch.float64)
    for each in rounds:
        possible = subsets @ (2 * (each.start - each.end) / 8)  # [256, n]
        nearest = (possible - each.pseudo_gradient[0]).abs().min(0)
        assert float(nearest.values.max()) < TOLERANCE
        assert len(nearest.indices.unique()) > 12  # of 24 elements: not one choice for all


def test_dare_that_drops_nothing_is_diloco():
    (_, _, plain), (_, _, none) = (
        simulate("diloco", *o) for o in ((), ("method.aggregator.kind=dare", "method.aggregator.dropped=0"))
    )
    assert torch.equal(plain, none)


def test_data_parallel_is_gradient_descent_on_the_mean():
    problem, _, final = simulate("data-parallel")
    x = np.zeros(24)
    for _ in range(12 * 4):
        a, c = problem.curvature.flatten(1).numpy(), problem.center.flatten(1).numpy()
        x = x - 0.05 * (a * (x - c)).mean(0)
    np.testing.assert_allclose(final.numpy(), np.broadcast_to(x, final.shape), rtol=0, atol=TOLERANCE)


def test_a_round_that_stops_before_its_end_changes_no_state():
    method = composed("factored-global-m1s-local-m2", 64, islands=2)
    islands = LockStep.from_start(method, torch.zeros(64, dtype=torch.float64), islands=2, seed=0)
    generator = torch.Generator().manual_seed(1)
    ends = torch.randn(2, 64, dtype=torch.float64, generator=generator)
    islands.round(0, lambda _, start: start + ends)
    before = [(s.base.clone(), s.momentum.clone()) for s in islands.states]
    with pytest.raises(RuntimeError, match="stop"):
        islands.round(1, stop)
    for state, (base, momentum) in zip(islands.states, before, strict=True):
        assert torch.equal(state.base, base)
        assert torch.equal(state.momentum, momentum)


def stop(number, start):
    raise RuntimeError("stop")


@pytest.mark.parametrize("islands", [2, 8])
def test_one_inner_step_with_lr_one_and_no_momentum_is_data_parallel(islands):
    plain = ("method.outer.lr=1", "method.outer.momentum=0")
    (_, _, averaged), (_, _, together) = (
        simulate(n, *o, islands=islands, steps=1) for n, o in (("diloco", plain), ("data-parallel", ()))
    )
    torch.testing.assert_close(averaged, together, rtol=0, atol=TOLERANCE)


def test_one_island_with_lr_one_and_no_momentum_keeps_its_ends_to_one_ulp():
    method = composed("diloco", 10_000, "method.outer.lr=1", "method.outer.momentum=0", islands=1)
    start = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    end = start + 1e-2 * torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    island = LockStep.from_start(method, start, islands=1, seed=0)
    island.round(0, lambda _, starts: end[None])
    # start - (start - end) differs from end by the rounding of the difference, at most half an ulp of the larger.
    bound = torch.finfo(torch.float32).eps * torch.maximum(start.abs(), end.abs())
    assert ((island.parameters[0] - end).abs() <= bound).all()
