"""The weight map is one table read both ways: nothing is lost, doubled or moved."""

import pytest
import torch

from loco_train.conversion.weight_map import LLAMA, weights_of
from loco_train.errors import ConversionError
from loco_train.testing.synthetic import random_parameters, tiny_model

MODELS = {
    "8 heads, 2 groups": tiny_model(),
    "8 heads, 1 group": tiny_model(key_value_heads=1),
    "no groups": tiny_model(key_value_heads=8),
    "tied": tiny_model(tied_embeddings=True),
    "own head width": tiny_model(head_dim=16),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request):
    return request.param


def test_hugging_face_to_logical_and_back_is_the_identity(model):
    foreign = {
        name: torch.randn(shape) for weight in weights_of(model) for name, shape in weight.foreign_shapes().items()
    }
    back = {}
    for weight in weights_of(model):
        back.update(weight.split(weight.fuse(foreign)))
    assert back.keys() == foreign.keys()
    assert all(torch.equal(back[name], foreign[name]) for name in foreign)


def test_logical_to_hugging_face_and_back_keeps_all_but_the_padding(model):
    for weight in weights_of(model):
        logical = random_parameters(model, seed=3)[weight.name]
        again = weight.fuse(weight.split(logical))
        rows = model.vocab_size if weight.rule.vocabulary else logical.shape[0]
        assert torch.equal(again[:rows], logical[:rows]), weight.name
        # Padding rows come back as the mean of the real ones.
        expected = logical[:rows].mean(dim=0, keepdim=True).expand_as(again[rows:])
        torch.testing.assert_close(again[rows:], expected)


def test_every_parameter_of_the_model_is_mapped_once(model):
    weights = weights_of(model)
    foreign = [name for weight in weights for name in weight.foreign]
    assert len(set(foreign)) == len(foreign)
    # The table's parameters without vocabulary padding are those that the settings count.
    numel = sum(torch.Size(s).numel() for weight in weights for s in weight.foreign_shapes().values())
    assert numel == model.parameters


def test_rows_of_the_fused_attention_weight_are_told_apart_by_value():
    """Each row says which projection, head and element it is; the split must find exactly these."""
    model = tiny_model()
    weight = next(w for w in weights_of(model) if w.rule.fusion == "qkv")
    rows = []
    for group in range(2):
        for head in range(4):
            rows += [(0, group * 4 + head, element) for element in range(8)]
        rows += [(1, group, element) for element in range(8)]
        rows += [(2, group, element) for element in range(8)]
    codes = torch.tensor([100.0 * part + 10 * head + element / 10 for part, head, element in rows])
    split = weight.split(codes[:, None].expand(-1, model.hidden_size))
    for part, (name, heads) in enumerate(zip(weight.foreign, (8, 2, 2), strict=True)):
        expected = [100.0 * part + 10 * head + element / 10 for head in range(heads) for element in range(8)]
        assert torch.equal(split[name][:, 0], torch.tensor(expected)), name


def test_gate_comes_before_up():
    weight = next(w for w in weights_of(tiny_model()) if w.rule.fusion == "halves")
    logical = torch.cat([torch.zeros(96, 64), torch.ones(96, 64)])
    split = weight.split(logical)
    assert [(name.split(".")[-2], part.unique().item()) for name, part in split.items()] == [
        ("gate_proj", 0.0),
        ("up_proj", 1.0),
    ]


def test_a_parameter_of_another_shape_or_a_missing_weight_is_refused():
    weight = weights_of(tiny_model())[0]
    with pytest.raises(ConversionError, match=r"wrong shape[^$]*\(1003, 64\)[^$]*\(1024, 64\)"):
        weight.split(torch.zeros(1003, 64))
    with pytest.raises(ConversionError, match=r"no model\.embed_tokens\.weight"):
        weight.fuse({})
    with pytest.raises(ConversionError, match="wrong shape"):
        weight.fuse({"model.embed_tokens.weight": torch.zeros(1025, 64)})


def test_every_rule_names_weights_that_transformers_has():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = tiny_model(layers=1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 1003}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    theirs = {n: tuple(p.shape) for n, p in LlamaForCausalLM(LlamaConfig(**sizes, **heads)).named_parameters()}
    ours = {n: s for weight in weights_of(model) for n, s in weight.foreign_shapes().items()}
    assert ours == theirs
    assert len(LLAMA) == 9
