"""Numbers that follow from settings, and settings that cannot be changed."""

import pytest
from pydantic import ValidationError

from loco_train.config.schema import ModelConfig
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


def test_nothing_can_be_changed_afterwards():
    with pytest.raises(ValidationError, match="frozen"):
        tiny_run().rounds = 3


def test_data_parallel_is_for_one_island():
    with pytest.raises(ValidationError, match="use islands.count=1 with parallel.data"):
        tiny_run({"method.rule": "none", "method.mix2.peers": "nobody", "islands.count": 2})
