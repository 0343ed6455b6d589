"""The exported folder, loaded by transformers, computes what the parameters mean."""

import json
import math
import resource

import pytest
import torch
from safetensors import safe_open
from torch.nn.functional import scaled_dot_product_attention, silu

from loco_train.config.model import RopeScaling
from loco_train.conversion.huggingface import export_huggingface
from loco_train.conversion.sampling import huggingface_loss, load_model
from loco_train.conversion.weight_map import weights_of
from loco_train.errors import ConversionError
from loco_train.testing.synthetic import MemoryParameters, random_parameters, tiny_model

SCALING = RopeScaling(factor=4.0, original_max_positions=64)
MODELS = {
    "8 heads, 2 groups": tiny_model(),
    "8 heads, 1 group": tiny_model(key_value_heads=1),
    "tied": tiny_model(tied_embeddings=True),
    "llama3 rope": tiny_model(rope_scaling=SCALING, rope_theta=5000.0, max_positions=512),
    "own head width, epsilon": tiny_model(head_dim=16, norm_epsilon=1e-2),
}


def random_model(model, *, seed=0, std=0.2):
    return MemoryParameters(random_parameters(model, seed=seed, std=std))


def frequencies(model):
    """Rotation per position of each pair of a head; Llama 3 slows the low ones and blends the middle."""
    exponents = torch.arange(0, model.head_size, 2, dtype=torch.float64) / model.head_size
    plain = model.rope_theta**-exponents
    scaling = model.rope_scaling
    if scaling is None:
        return plain
    scaled = []
    for frequency in plain.tolist():
        turns = scaling.original_max_positions * frequency / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        scaled.append((1 - share) * frequency / scaling.factor + share * frequency)
    return torch.tensor(scaled, dtype=torch.float64)


def rotate(x, angles):
    """x: [batch, head, position, width]; element i is rotated with element i + width / 2."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def reference_logits(model, parameters, tokens):
    """The model straight from its logical parameters, fused weights and padding included; fp32 logits."""
    width, groups, per_group = model.head_size, model.key_value_heads, model.attention_heads // model.key_value_heads
    batch, length = tokens.shape

    def norm(x, gain):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + model.norm_epsilon) * gain

    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(model)
    x = parameters["embedding.word_embeddings.weight"][tokens]
    for layer in range(model.layers):
        get = lambda name, layer=layer: parameters[f"decoder.layers.{layer}.{name}.weight"]  # noqa: E731
        fused = norm(x, get("input_layernorm")) @ get("self_attention.linear_qkv").T
        fused = fused.view(batch, length, groups, per_group + 2, width)
        q = fused[..., :per_group, :].reshape(batch, length, -1, width).transpose(1, 2)
        k, v = (fused[..., per_group + i, :].transpose(1, 2) for i in (0, 1))
        k, v = (t.repeat_interleave(per_group, dim=1) for t in (k, v))
        attended = scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(batch, length, -1) @ get("self_attention.linear_proj").T
        gate, up = (norm(x, get("pre_mlp_layernorm")) @ get("mlp.linear_fc1").T).chunk(2, dim=-1)
        x = x + (silu(gate) * up) @ get("mlp.linear_fc2").T
    output = parameters.get("output_layer.weight", parameters["embedding.word_embeddings.weight"])
    return (norm(x, parameters["decoder.final_layernorm.weight"]) @ output.T)[..., : model.vocab_size]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_logits_equal_an_independent_implementation(tmp_path, model):
    parameters = random_model(model)
    export_huggingface(parameters, model, tmp_path / "hf", tokenizer=None, dtype="float32")
    tokens = torch.randint(model.vocab_size, (2, 150), generator=torch.Generator().manual_seed(1))
    expected = reference_logits(model, parameters.values, tokens)
    with torch.inference_mode():
        logits = load_model(tmp_path / "hf")(input_ids=tokens).logits
    assert logits.shape == expected.shape == (2, 150, 1003)
    # Two fp32 implementations differ by the order of summation: about 1e-7 a sum, a few dozen sums deep, on logits
    # of size about 2. A wrong row, angle or head changes logits by more than 0.1.
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_position_and_scaling_matter_in_the_comparison_above():
    """The reference itself: other rope settings give other logits at later positions, so equality proves them."""
    plain, scaled = MODELS["8 heads, 2 groups"], tiny_model(rope_scaling=SCALING)
    parameters = random_parameters(plain, seed=0)
    tokens = torch.arange(150)[None]
    difference = (reference_logits(plain, parameters, tokens) - reference_logits(scaled, parameters, tokens)).abs()
    assert difference[:, 0].max() < 1e-6
    assert difference[:, 1:].amax(dim=-1).min() > 1e-3


def test_bf16_is_rounded_once_from_fp32(tmp_path):
    model, parameters = tiny_model(), random_model(tiny_model())
    export_huggingface(parameters, model, tmp_path / "hf", tokenizer=None)
    loaded = load_model(tmp_path / "hf").state_dict()
    for weight in weights_of(model):
        for name, value in weight.split(parameters.read(weight.name)).items():
            assert torch.equal(loaded[name], value.to(torch.bfloat16).float()), name
    assert json.loads((tmp_path / "hf/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_weights_are_sharded_and_all_of_them_are_in_the_index(tmp_path):
    model = tiny_model()
    whole = export_huggingface(random_model(model), model, tmp_path / "whole", tokenizer=None, dtype="float32")
    cut = export_huggingface(
        random_model(model), model, tmp_path / "cut", tokenizer=None, dtype="float32", max_shard_bytes=100_000
    )
    index = json.loads((tmp_path / "cut/model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert [f for f in cut.files if f.endswith(".safetensors")] == files
    for file in files:
        with safe_open(tmp_path / "cut" / file, framework="pt") as opened:
            names = list(opened.keys())
            sizes = [opened.get_tensor(name).nbytes for name in names]
        assert sum(sizes) <= 100_000 or len(names) == 1, file
        assert all(index["weight_map"][name] == file for name in names)
    assert index["metadata"]["total_size"] == 4 * model.parameters
    assert whole.parameters == cut.parameters == model.parameters
    first, second = load_model(tmp_path / "whole").state_dict(), load_model(tmp_path / "cut").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_tied_weight_is_written_once(tmp_path):
    model = tiny_model(tied_embeddings=True)
    export_huggingface(random_model(model), model, tmp_path / "hf", tokenizer=None)
    with safe_open(tmp_path / "hf/model.safetensors", framework="pt") as opened:
        assert "lm_head.weight" not in opened.keys()  # noqa: SIM118
        assert opened.get_slice("model.embed_tokens.weight").get_shape() == [1003, 64]
    loaded = load_model(tmp_path / "hf")
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()


def test_the_loss_of_the_folder_is_the_loss_of_the_parameters(tmp_path):
    model, parameters = tiny_model(), random_model(tiny_model(), std=0.1)
    export_huggingface(parameters, model, tmp_path / "hf", tokenizer=None, dtype="float32")
    generator = torch.Generator().manual_seed(2)
    # Batches of different sizes: the mean is over tokens, not over batches.
    batches = [torch.randint(1003, (n, 33), generator=generator) for n in (3, 1)]
    losses = []
    for batch in batches:
        log_probabilities = reference_logits(model, parameters.values, batch[:, :-1]).double().log_softmax(-1)
        losses.append(-log_probabilities.gather(-1, batch[:, 1:, None]).flatten())
    expected = torch.cat(losses).mean().item()
    assert huggingface_loss(tmp_path / "hf", batches) == pytest.approx(expected, abs=1e-5)


def test_nothing_is_overwritten_unasked_and_nothing_else_ever(tmp_path):
    model = tiny_model(layers=1)
    target = tmp_path / "hf"
    export_huggingface(random_model(model, seed=0), model, target, tokenizer=None)
    before = (target / "model.safetensors").read_bytes()
    with pytest.raises(ConversionError, match="not empty[^$]*--force"):
        export_huggingface(random_model(model, seed=1), model, target, tokenizer=None)
    assert (target / "model.safetensors").read_bytes() == before
    export_huggingface(random_model(model, seed=1), model, target, tokenizer=None, force=True)
    assert (target / "model.safetensors").read_bytes() != before
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("all of it")
    with pytest.raises(ConversionError, match="no exported model"):
        export_huggingface(random_model(model), model, precious, tokenizer=None, force=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["hf", "precious"]


def test_a_failed_export_leaves_nothing(tmp_path):
    model = tiny_model(layers=1)
    parameters = random_model(model)
    read = parameters.read

    def read_or_fail(name):
        if name == "output_layer.weight":
            raise OSError("the disk went away")
        return read(name)

    parameters.read = read_or_fail
    with pytest.raises(ConversionError, match="the disk went away"):
        export_huggingface(parameters, model, tmp_path / "hf", tokenizer=None)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files():
    """No file of this process may grow beyond 64 KiB, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_an_export_that_finds_no_room_says_so_and_leaves_the_old_one(tmp_path):
    small, large = tiny_model(layers=1, vocab_size=260, hidden_size=16), tiny_model(layers=2, hidden_size=256)
    export_huggingface(random_model(small), small, tmp_path / "hf", tokenizer=None)
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "hf").iterdir()}
    with pytest.raises(ConversionError, match="(?s)nothing was left.*to do: see that there is room"):
        export_huggingface(random_model(large), large, tmp_path / "hf", tokenizer=None, force=True)
    assert {entry.name: entry.read_bytes() for entry in (tmp_path / "hf").iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("value", "dtype", "fix"),
    [(float("nan"), "float32", "diverged"), (float("inf"), "bfloat16", "diverged"), (1e6, "float16", "use bfloat16")],
)
def test_what_is_not_finite_is_not_exported(tmp_path, value, dtype, fix):
    model = tiny_model(layers=1)
    parameters = random_model(model)
    parameters.values["output_layer.weight"][1002, 5] = value
    with pytest.raises(ConversionError, match=rf"lm_head.weight holds infinity or NaN[^$]*{fix}"):
        export_huggingface(parameters, model, tmp_path / "hf", tokenizer=None, dtype=dtype)
    assert list(tmp_path.iterdir()) == []
    # Padding rows are not exported, and so do not count.
    parameters.values["output_layer.weight"][1002, 5] = 0
    parameters.values["output_layer.weight"][1003:] = value
    export_huggingface(parameters, model, tmp_path / "hf", tokenizer=None, dtype=dtype)


def test_a_model_or_a_dtype_that_cannot_be_expressed_is_refused(tmp_path):
    odd = tiny_model(hidden_size=60, head_dim=8)
    with pytest.raises(ConversionError, match="multiple of attention_heads"):
        export_huggingface(random_model(odd), odd, tmp_path / "hf", tokenizer=None)
    model = tiny_model(layers=1)
    with pytest.raises(ConversionError, match="unknown dtype[^$]*int3[^$]*bfloat16"):
        export_huggingface(random_model(model), model, tmp_path / "hf", tokenizer=None, dtype="int3")
    with pytest.raises(ConversionError, match="parameters are not the model's"):
        export_huggingface(random_model(tiny_model(layers=2)), model, tmp_path / "hf", tokenizer=None)
    assert list(tmp_path.iterdir()) == []
