"""Names of blocks, and what they select."""

import pytest

from loco_train.blocks import block_names, block_of, select_blocks

PARAMETERS = {
    "embedding.word_embeddings.weight": "embedding",
    "decoder.layers.3.input_layernorm.weight": "layers.3.attention",
    "decoder.layers.3.self_attention.linear_qkv.weight": "layers.3.attention",
    "decoder.layers.3.self_attention.linear_proj.weight": "layers.3.attention",
    "decoder.layers.3.pre_mlp_layernorm.weight": "layers.3.mlp",
    "decoder.layers.3.mlp.linear_fc1.weight": "layers.3.mlp",
    "decoder.layers.3.mlp.linear_fc2.weight": "layers.3.mlp",
    "decoder.final_layernorm.weight": "final-norm",
    "output_layer.weight": "head",
}


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_every_parameter_has_its_block(parameter):
    assert block_of(parameter) == PARAMETERS[parameter]
    assert block_of(parameter) in block_names(layers=4, tied=False)


@pytest.mark.parametrize(
    ("selectors", "chosen"),
    [
        (["head", "embedding"], ["embedding", "head"]),
        (["layers.1"], ["layers.1.attention", "layers.1.mlp"]),
        (["layers.0-1.mlp", "layers.1.mlp"], ["layers.0.mlp", "layers.1.mlp"]),
        (["layers.2.attention", "final-norm"], ["layers.2.attention", "final-norm"]),
    ],
)
def test_selectors(selectors, chosen):
    assert select_blocks(selectors, layers=3, tied=False) == tuple(chosen)


def test_a_tied_head_is_the_embedding():
    assert select_blocks(["head"], layers=1, tied=True) == ("embedding",)


@pytest.mark.parametrize("selector", ["layers.3", "layers.1-3", "layers.2-1", "layers.0.norm", "heads", ""])
def test_a_block_that_is_not_there(selector):
    with pytest.raises(ValueError, match="is no block of this model"):
        select_blocks([selector], layers=3, tied=False)
