"""Text problems: short runs of every method, and what must hold between them."""

import itertools
import math

import pytest
import torch

from loco_train.config.load import available, load_run
from loco_train.errors import ConfigError, NonFinite
from loco_train.simulation.stacked_llama import Shape
from loco_train.simulation.text import Corpus, TextSettings, run_text, total_tokens, warm_start

SHAPE = Shape(layers=2, hidden=16, heads=2, ffn=32, sequence=16)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """A text in which each byte follows from the one before, up to a few choices."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(1, 4, (700, 17), generator=generator).cumsum(1)
    drawn = (steps % 60 + 32).to(torch.uint8)
    return Corpus(drawn[:650], drawn[650:])


def run(corpus, name: str, *overrides: str, islands: int = 4, **changes):
    settings = [f"method={name}", f"islands.count={islands}", "method.inner_steps=5", *overrides]
    if name == "data-parallel":
        settings.append("islands.count=1")
    text = TextSettings(**{"rounds": 4, "warm_up_steps": 60, "batch": 8, "shape": SHAPE, "inner_lr": 1e-2, **changes})
    return run_text(load_run("quickstart", settings).config, text, corpus, islands=islands)


ALL_EQUAL = ("data-parallel", "diloco", "isoloco", "isoloco-fast", "slowmo")


@pytest.mark.parametrize("name", available("methods"))
def test_every_method_learns(corpus, name):
    result = run(corpus, name, *(["method.outer.lr=0.5"] if name.startswith("isoloco") else []))
    assert result.loss < math.log(60)  # better than to know only which bytes there are
    assert result.tokens == (60 * 8 + 4 * 5 * 8) * 16
    assert (result.l2 == 0) == (name in ALL_EQUAL) or name == "gasloc-complete"
    assert 0 <= result.js <= result.js_max <= 1


def test_one_result_for_one_seed_and_another_for_another(corpus):
    assert run(corpus, "gasloc-1peer") == run(corpus, "gasloc-1peer")
    assert run(corpus, "gasloc-1peer").loss != run(corpus, "gasloc-1peer", seed=1).loss


def test_one_island_with_lr_one_and_no_momentum_is_plain_training(corpus):
    plain = ["method.outer.lr=1", "method.outer.momentum=0"]
    one, other = (run(corpus, "diloco", *plain, islands=1, **c) for c in ({}, {"rounds": 2, "warm_up_steps": 70}))
    # The same 80 steps, of which 20 or 10 in rounds: start - (start - end) rounds once a round.
    assert one.loss == pytest.approx(other.loss, abs=1e-4)


def test_bytes_are_those_of_the_method(corpus):
    model = 4 * SHAPE.layout.numel
    assert run(corpus, "diloco").sent_bytes == 4 * 4 * (2 * 3 * model // 4)
    assert run(corpus, "gasloc-1peer").sent_bytes == 4 * 4 * model
    assert run(corpus, "gasloc-2peer", islands=8).sent_bytes == 4 * 8 * 2 * model
    assert run(corpus, "data-parallel").sent_bytes == 4 * 5 * run(corpus, "diloco").sent_bytes // 4


def test_data_parallel_is_one_island_with_the_whole_batch(corpus):
    plain = ["method.outer.lr=1", "method.outer.momentum=0"]
    spread, alone = run(corpus, "data-parallel"), run(corpus, "diloco", *plain, islands=1)
    assert spread.tokens == alone.tokens
    assert spread.loss == pytest.approx(alone.loss, abs=1e-4)


def test_islands_that_gossip_speak_differently_and_those_that_average_do_not(corpus):
    pairs, everyone = run(corpus, "gasloc-1peer"), run(corpus, "gasloc-complete")
    assert pairs.js > 0.001
    assert everyone.js < 1e-4


def test_unequal_inner_steps(corpus):
    result = run(corpus, "gasloc-2peer", "method.inner_steps=[5,5,2,1]")
    assert result.tokens == (60 * 8 + 4 * 13 * 2) * 16


def test_more_islands_than_sequences(corpus):
    with pytest.raises(ConfigError, match="8 sequences and 16 islands"):
        run(corpus, "diloco", islands=16)


def test_a_run_that_diverges_says_so(corpus):
    with pytest.raises(NonFinite, match="NaN or infinity in the parameters of island"):
        run(corpus, "diloco", "method.outer.lr=1e30", rounds=6)


def test_a_warm_start_at_hand_changes_nothing(corpus):
    config = load_run("quickstart", ["method=gasloc-1peer", "islands.count=4", "method.inner_steps=5"]).config
    settings = TextSettings(rounds=3, warm_up_steps=30, warm_up_lr=5e-3, batch=8, shape=SHAPE, inner_lr=1e-2)
    start = warm_start(settings, corpus, total_tokens=total_tokens(settings, config))
    alone = run_text(config, settings, corpus)
    assert [run_text(config, settings, corpus, start=start) for _ in range(2)] == [alone, alone]


def test_order_goes_on_where_it_was_left(corpus):
    count = len(corpus.train)
    for skipped in (0, 3, count, count + 5):
        whole, rest = corpus.order(1), corpus.order(1, skipped=skipped)
        whole = itertools.islice(whole, skipped, skipped + 4)
        assert torch.equal(torch.stack(list(whole)), torch.stack(list(itertools.islice(rest, 4))))


def test_evaluated_now_and_then_ends_the_same(corpus):
    told: list[float] = []
    often, seldom = run(corpus, "gasloc-1peer", rounds=5), run(corpus, "gasloc-1peer", rounds=5, evaluate_every=2)
    config = load_run("quickstart", ["method=diloco", "islands.count=4", "method.inner_steps=5"]).config
    settings = TextSettings(rounds=5, warm_up_steps=10, batch=8, shape=SHAPE, evaluate_every=2)
    run_text(config, settings, corpus, on_round=told.append)
    assert (often.loss, often.l2, often.js) == (seldom.loss, seldom.l2, seldom.js)
    assert often.l2_max >= seldom.l2_max
    assert len(told) == 3  # rounds 2, 4 and the last


def test_islands_that_average_differ_before_the_outer_step(corpus):
    result = run(corpus, "diloco")
    assert result.l2_before > 0 == result.l2_max
    assert result.js_before > 0 == result.js_max
