"""The plan: sizes by block, the papers' advice, and what a method's state takes."""

import pytest

from loco_train.config.load import load_run
from loco_train.planning.model_size import block_parameters, share_of
from loco_train.planning.plan import Cluster, advice, outer_state_bytes, plan

PAPER = {"parameters": 1.5e9, "islands": 8, "inner_steps": 100, "step_seconds": 4.72}


def config(*settings: str):
    return load_run("quickstart", list(settings)).config


@pytest.mark.parametrize("name", ["llama-1.5b", "llama-150m", "llama-7b", "quickstart"])
@pytest.mark.parametrize("tied", ["false", "true"])
def test_blocks_are_all_of_the_model(name, tied):
    model = config(f"model={name}", f"model.tied_embeddings={tied}").model
    assert sum(block_parameters(model).values()) == model.parameters


def test_the_papers_subset_is_43_per_cent_of_its_model():
    model = config("model=llama-1.5b").model
    assert share_of(["embedding", "head", "layers.0-1"], model) == pytest.approx(0.43, abs=0.005)
    assert share_of(["embedding"], model) == model.vocab_size * model.hidden_size / model.parameters


# arXiv 2606.22768: from 2 Gbit/s on DiLoCo, from 0.5 GlobalM1LocalM2, from 0.1 the subset, GlobalM1 below.
@pytest.mark.parametrize(
    ("megabits", "method"),
    [
        (2000, "diloco"),
        (1900, "factored-global-m1-local-m2"),
        (500, "factored-global-m1-local-m2"),
        (480, "factored-global-m1-local-m2-subset"),
        (100, "factored-global-m1-local-m2-subset"),
        (90, "factored-global-m1"),
    ],
)
def test_the_papers_advice(megabits, method):
    assert advice(Cluster(**PAPER, bits_per_second=megabits * 1e6))[0] == method


def test_smaller_copies_shift_the_advice():
    halved = Cluster(**PAPER, bits_per_second=1e9, bytes_per_parameter=2)
    assert advice(halved)[0] == "diloco"


def test_state_of_a_rank_by_its_buffers():
    cluster = Cluster(**PAPER, bits_per_second=1e8, ranks=8)
    each = 4 * 1.5e9 / 8
    buffers = {
        "diloco": 3,  # base, momentum, what travels
        "factored-local-m1m2": 4,  # and where mix1 arrives
        "factored-global-m1s": 5,  # and the momentum's
        "streaming-diloco": 5,  # and what was sent
    }
    for name, count in buffers.items():
        assert outer_state_bytes(config(f"method={name}", "islands.count=8").method, cluster) == count * each
    ties = config("method=diloco", "islands.count=8", "method.aggregator.kind=ties").method
    assert outer_state_bytes(ties, cluster) == (3 + 8) * each


def test_days_and_the_order_of_rows():
    cluster = Cluster(**PAPER, bits_per_second=2e8, tokens_per_step=65536)
    names = ("diloco", "factored-global-m1")
    methods = {name: config(f"method={name}", "islands.count=8", "method.inner_steps=100").method for name in names}
    first, second = plan(methods, cluster, subsets={}, tokens=1e12)
    assert (first.method, second.method) == ("factored-global-m1", "diloco")
    # The paper: about 16 weeks against 29.
    assert first.days / 7 == pytest.approx(16, abs=1.5)
    assert second.days / 7 == pytest.approx(29, abs=1.5)
    assert first.inner_steps_to_hide == pytest.approx(90, abs=2)
