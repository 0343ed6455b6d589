import math

import torch

from loco_train.islands import initial_values
from loco_train.testing.tiny import tiny_run

EMBEDDING, PROJECTION = "embedding.word_embeddings.weight", "decoder.layers.1.self_attention.linear_proj.weight"


def test_a_weight_is_a_function_of_seed_and_name() -> None:
    value = initial_values(tiny_run().model, seed=1)
    again = initial_values(tiny_run().model, seed=1)
    again("output_layer.weight", (64, 32))  # whatever was made before
    assert torch.equal(value(PROJECTION, (32, 32)), again(PROJECTION, (32, 32)))
    assert not torch.equal(value(PROJECTION, (32, 32)), initial_values(tiny_run().model, seed=2)(PROJECTION, (32, 32)))
    other_layer = PROJECTION.replace("1", "0")
    assert not torch.equal(value(PROJECTION, (32, 32)), value(other_layer, (32, 32)))


def test_spread_padding_and_gains() -> None:
    model = tiny_run({"model.init_std": 0.5}).model
    value = initial_values(model, seed=1)
    # Of n normal samples the relative error of the deviation is 1 / sqrt(2 n): 0.2 % here, five of them allowed.
    wide = value("decoder.layers.0.mlp.linear_fc1.weight", (400, 300)).std().item()
    assert math.isclose(wide, 0.5, rel_tol=0.01)
    into_residual = value("decoder.layers.0.mlp.linear_fc2.weight", (400, 300)).std().item()
    assert math.isclose(into_residual, 0.5 / math.sqrt(2 * model.layers), rel_tol=0.01)
    embedding = value(EMBEDDING, (64, 32))
    assert (embedding[61:] == 0).all()
    assert (embedding[:61] != 0).all()
    assert torch.equal(value("decoder.final_layernorm.weight", (32,)), torch.ones(32))
