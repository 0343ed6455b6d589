"""Numbers that follow from settings, and settings that cannot be changed."""

import pytest
from pydantic import ValidationError

from loco_train.config.model import ModelConfig
from loco_train.testing.tiny import tiny_run

LLAMA_2_7B = {
    "layers": 32, "hidden_size": 4096, "ffn_hidden_size": 11008, "attention_heads": 32, "key_value_heads": 32,
    "vocab_size": 32000,
}  # fmt: skip
LLAMA_3_8B = {
    "layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "attention_heads": 32, "key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize(("settings", "published"), [(LLAMA_2_7B, 6_738_415_616), (LLAMA_3_8B, 8_030_261_248)])
def test_parameters_are_those_of_published_models(settings, published):
    assert ModelConfig(**settings).parameters == published


def test_a_tied_embedding_counts_once_and_a_head_may_have_a_width_of_its_own():
    untied, tied = ModelConfig(**LLAMA_2_7B), ModelConfig(**LLAMA_2_7B, tied_embeddings=True)
    assert untied.parameters - tied.parameters == 32000 * 4096
    wide = ModelConfig(**LLAMA_2_7B, head_dim=256)
    assert (wide.head_size, untied.head_size) == (256, 128)
    assert wide.parameters - untied.parameters == 32 * 4 * 4096 * 128 * 32


@pytest.mark.parametrize(("vocab", "padded"), [(1, 8), (8, 8), (61, 64)])
def test_the_padded_vocabulary_does_not_depend_on_the_layout(vocab, padded):
    for tensor in (1, 2):
        assert tiny_run({"model.vocab_size": vocab, "parallel.tensor": tensor}).model.padded_vocab_size == padded


def test_sizes_of_a_run():
    run = tiny_run(
        {
            "islands.count": 3, "parallel.data": 2, "parallel.tensor": 2, "batch.island": 16, "batch.micro": 2,
            "rounds": 5, "method.inner_steps": 7, "islands.rendezvous": "host:1",
        }
    )  # fmt: skip
    assert (run.parallel.ranks, run.accumulation_steps) == (4, 4)
    assert run.tokens_per_round == 3 * 7 * 16 * 16
    assert run.total_tokens == 5 * run.tokens_per_round


@pytest.mark.parametrize(("data", "sequences"), [(1, 8), (3, 12), (8, 16)])
def test_health_takes_eight_sequences_or_the_next_multiple_that_fits(data, sequences):
    run = tiny_run({"batch.island": 48, "evaluation.sequences": 48, "parallel.data": data, "health.every_rounds": 1})
    assert run.health_sequences == sequences


def test_nothing_can_be_changed_afterwards():
    with pytest.raises(ValidationError, match="frozen"):
        tiny_run().rounds = 3


def test_data_parallel_is_for_one_island():
    with pytest.raises(ValidationError, match="use islands.count=1 with parallel.data"):
        tiny_run({"method.rule": "none", "method.mix2.peers": "nobody", "islands.count": 2})


POLICY = {"every_rounds": 1, "policy": {}}
GLOBAL_M1 = {"rule": "progress", "mix1": {"peers": "all"}}


def subset(blocks, **more):
    """GlobalM1LocalM2 with mix2 of some blocks."""
    return GLOBAL_M1 | {"mix2": {"peers": "ring", "blocks": blocks, **more}}


STREAMING = {"rule": "streaming", "inner_steps": 2, "mix1": {"peers": "all"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer.betas": (0.9, 1.0)}, "less than 1"),
        ({"optimizer.lr": float("inf")}, "finite"),
        ({"optimizer.eps": float("nan")}, "finite"),
        ({"network.bucket_bytes": 0}, "at least 4KiB"),
        ({"network.exchange_timeout": 0}, "exchange_timeout must be longer"),
        ({"network.rendezvous_timeout": "0s"}, "rendezvous_timeout must be longer"),
        ({"method.inner_steps": 0}, "greater than"),
        ({"health.every_rounds": 0}, "greater than 0"),
        (
            {"health": POLICY | {"every_rounds": None}, "method": GLOBAL_M1},
            "needs measurements: set health.every_rounds",
        ),
        ({"health": POLICY}, "needs a mix1"),
        ({"health": POLICY, "method": GLOBAL_M1 | {"mix2": {"peers": "ring"}}}, "nothing to widen: .* with peers ring"),
        (
            {"health": POLICY, "method": {"rule": "ends", "mix2": {"peers": "ring"}}},
            "of rule progress only, got rule ends",
        ),
        ({"health": POLICY, "method": STREAMING}, "of rule progress only, got rule streaming"),
        ({"health.policy.rise": 1.0}, "greater than 1"),
        ({"health.policy": {"rise": 1.2, "fall": 1.2}}, r"fall \(1.2\) must be below rise \(1.2\)"),
        ({"health.policy.window": 0}, "greater than 0"),
        ({"health.every_rounds": 1, "health.sequences": 3}, r"health.sequences \(3\) must be a multiple of .*\(2\)"),
        ({"health.every_rounds": 1, "method": {"rule": "none"}}, "one island, which agrees with itself"),
        ({"method.inner_steps": [3, 0]}, "greater than"),
        ({"method.inner_steps": [3, 3]}, "islands.count is 1"),
        ({"method": subset(["layers.7"])}, "layers.7 is no block of this model"),
        ({"method": {"rule": "progress", "mix2": {"peers": "ring", "blocks": ["head"]}}}, "needs a mix1"),
        ({"method": subset("measured")}, "goes with a budget"),
        ({"method": subset(["head"], budget="1MB")}, "goes with a budget"),
        ({"method": subset(["head"], measure_every_rounds=2)}, "goes with blocks: measured"),
        ({"method": subset("measured", budget="100B")}, r"budget \(100B\) is less than the smallest block"),
        ({"method.mix2.peers": "random-pair", "method.mix2.links": [[0, 9]]}, "no pair of two of the islands"),
        ({"method.mix2.links": [[0, 1]]}, "links limit peers random-pair only"),
        ({"method.mix2.peers": "random-pair", "method.mix2.links": []}, "at least 1"),
        ({"method.mix1.peers": "random-pair", "method.mix1.links": [[1, 1]]}, r"mix1.links: \[1, 1\] is no pair"),
        (
            {"islands.count": 4, "method.mix1.peers": "random-pair", "method.mix1.links": [[0, 1], [2, 3]]},
            "mix1.links must join all islands.*from island 0 to 2, 3",
        ),
        ({"method.mix2.peers": "graph"}, "goes with a file"),
        ({"method.mix2.self_weight": 0.5}, "self_weight has no meaning for peers all"),
        ({"method.mix2.peers": "nobody"}, "the islands would never meet"),
        ({"method.mix1.peers": "all", "method.mix1.blocks": ["head"]}, "mix1 takes no blocks"),
        ({"method.mix1_momentum": True}, "needs a mix1"),
        ({"method.rule": "ends", "method.aggregator.kind": "iso"}, "unsound with rule ends"),
        ({"method.rule": "starts"}, "rule starts takes mix1, got mix2"),
        ({"method": subset(["head"]) | {"aggregator": {"kind": "iso"}}}, "unsound with mix2.blocks"),
        ({"method.outer": {"kind": "sgd", "momentum": 0.5}}, "sgd has no momentum"),
        ({"method.aggregator.kind": "ties", "method.mix2.peers": "ring"}, "needs the progress of every island"),
        ({"method.aggregator.kind": "dare", "method.aggregator.dropped": 1}, "less than 1"),
        ({"method.weighting": "tokens", "method.rule": "ends"}, "no meaning for rule ends"),
        ({"method": STREAMING | {"streaming": {"fragments": 4}}}, "must be at most 3: the model has 2 layers"),
        ({"method": STREAMING | {"mix1": {"peers": "ring"}}}, "takes mix1.peers all, got ring"),
        ({"method": STREAMING | {"mix2": {"peers": "all"}}}, "rule streaming takes mix1, got mix1 and mix2"),
        ({"method": STREAMING | {"aggregator": {"kind": "iso"}}}, "rule streaming takes the mean"),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        tiny_run(settings)


@pytest.mark.parametrize(
    ("islands", "settings", "expected"),
    [
        (8, {}, (0.7, 0.9)),
        (8, {"method.rule": "ends"}, (0.8, 0.7)),
        (8, {"method": STREAMING}, (0.4, 0.9)),
        (8, {"method.aggregator.kind": "iso"}, (1.8, 0.8)),
        (17, {"method.aggregator.kind": "iso-fast"}, (4.6, 0.9)),
        (128, {"method.aggregator.kind": "iso"}, (9.8, 0.9)),
        (8, {"method.aggregator.kind": "iso", "method.outer.lr": 1.0}, (1.0, 0.8)),
        (8, {"method.outer.kind": "sgd"}, (0.7, 0.0)),
    ],
)
def test_the_outer_optimizers_defaults_are_the_methods(islands, settings, expected):
    assert tiny_run({**settings, "islands.count": islands}).method.outer_for(islands) == expected
