"""The decoder alone, on one process, against Hugging Face's Llama in fp32."""

from typing import Any

import pytest
import torch

from loco_train.testing import World, run_ranks
from loco_train.testing.tiny import island_batch, tiny_run

SCALING = {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_max_positions": 32}
VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"model.tied_embeddings": True},
    # Wavelengths of a head of 8 at theta 20 are 6, 13, 28 and 59 positions: all three bands of the scaling occur.
    "scaled": {"model.rope_scaling": SCALING, "model.rope_theta": 20.0},
    "wide heads": {"model.head_dim": 16, "model.tied_embeddings": True, "model.rope_scaling": SCALING},
}


def llama(run: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    model, rope = run.model, {"rope_type": "default", "rope_theta": run.model.rope_theta}
    if model.rope_scaling:
        rope |= {
            "rope_type": "llama3",
            "factor": model.rope_scaling.factor,
            "low_freq_factor": model.rope_scaling.low_frequency_factor,
            "high_freq_factor": model.rope_scaling.high_frequency_factor,
            "original_max_position_embeddings": model.rope_scaling.original_max_positions,
        }
    config = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention_heads,
        num_key_value_heads=model.key_value_heads,
        head_dim=model.head_size,
        max_position_embeddings=model.max_positions,
        rms_norm_eps=model.norm_epsilon,
        tie_word_embeddings=model.tied_embeddings,
        rope_parameters=rope,
    )
    return LlamaForCausalLM(config).eval()


def copy_weights(run: Any, decoder: Any, foreign: Any) -> None:
    """Weights large enough that every part of the model shows in the logits, and gains that are not all one."""
    from loco_train.conversion.weight_map import weights_of
    from loco_train.islands.logical import logical_of

    generator = torch.Generator().manual_seed(0)
    ours = {logical_of(p).name: p for p in decoder.parameters()}
    for parameter in ours.values():
        parameter.data.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3, generator=generator)
    theirs = dict(foreign.state_dict())
    for weight in weights_of(run.model):
        for name, value in weight.split(ours[weight.name].detach()).items():
            theirs[name].copy_(value)


def compare_with_llama(world: World, overrides: dict[str, Any]) -> dict[str, float]:
    from loco_train.islands import join_island
    from loco_train.islands.model import Blueprint, Decoder, layer_specs

    run = tiny_run({"batch.sequence_length": 48, **overrides})
    layout = join_island(run, device=torch.device("cpu"))
    decoder, foreign = Decoder(layer_specs(Blueprint.of(run, layout))), llama(run)
    with torch.no_grad():
        copy_weights(run, decoder, foreign)
    batch = island_batch(run, step=0)
    tokens, labels = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    logits = decoder(tokens).transpose(0, 1)[..., : run.model.vocab_size]
    expected = foreign(input_ids=tokens).logits
    loss = decoder(tokens, labels)
    expected_loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten())
    loss.backward()
    expected_loss.backward()
    embedding = next(decoder.parameters())
    gradient = foreign.model.embed_tokens.weight.grad
    return {
        "logits": (logits - expected).abs().max().item(),
        "scale": expected.abs().max().item(),
        "loss": abs(loss.item() - expected_loss.item()),
        "gradient": (embedding.grad[: run.model.vocab_size] - gradient).abs().max().item(),
        "gradient scale": gradient.abs().max().item(),
        "padding gradient": embedding.grad[run.model.vocab_size :].abs().max().item(),
    }


def compare_all(world: World) -> dict[str, dict[str, float]]:
    return {name: compare_with_llama(world, overrides) for name, overrides in VARIANTS.items()}


@pytest.fixture(scope="module")
def differences() -> dict[str, dict[str, float]]:
    return run_ranks(compare_all, ranks=1)[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_llama_at_every_position(differences: dict[str, dict[str, float]], variant: str) -> None:
    found = differences[variant]
    # Sums of about 100 fp32 products in another order: some hundred ulp of the largest value at most.
    assert found["logits"] < 2e-5 * found["scale"]
    assert found["loss"] < 1e-5
    assert found["gradient"] < 5e-5 * found["gradient scale"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_rows_take_no_part(differences: dict[str, dict[str, float]], variant: str) -> None:
    assert differences[variant]["padding gradient"] == 0.0
