"""Text drawn from an exported folder: seeded, bounded, and what the settings say."""

import pytest
import torch

from loco_train.conversion.huggingface import TokenizerSource, export_huggingface
from loco_train.conversion.sampling import SamplingSettings, huggingface_loss, load_model, sample
from loco_train.errors import ConversionError
from loco_train.testing.synthetic import MemoryParameters, random_parameters, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model with a real tokenizer of 400 pieces."""
    import io

    import sentencepiece

    writer = io.BytesIO()
    text = [f"the quick brown fox number {i} jumps over the lazy dog of year {i * 7}" for i in range(2000)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=writer, vocab_size=400, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue())
    model = tiny_model(vocab_size=processor.vocab_size(), layers=1)
    target = tmp_path_factory.mktemp("sampling") / "hf"
    source = TokenizerSource(writer.getvalue(), processor.encode)
    export_huggingface(MemoryParameters(random_parameters(model, seed=0)), model, target, tokenizer=source)
    return target


def test_the_same_seed_gives_the_same_text_and_another_seed_another(folder):
    prompts = ["the quick", "the quick", " over\n the lazy", ""]
    settings = SamplingSettings(new_tokens=20, seed=5)
    before = torch.random.get_rng_state()
    first = sample(folder, prompts, settings=settings)
    assert torch.equal(torch.random.get_rng_state(), before)  # training that goes on is not disturbed
    assert sample(folder, prompts, settings=settings) == first
    assert [c.prompt for c in first] == prompts
    assert all(c.text for c in first)
    assert first[0].text != first[1].text  # the same prompt again is another draw
    assert sample(folder, prompts, settings=SamplingSettings(new_tokens=20, seed=6)) != first


def test_temperature_zero_takes_the_likeliest_token(folder):
    from transformers import AutoTokenizer

    settings = SamplingSettings(new_tokens=5, temperature=0)
    first, second = sample(folder, ["the quick", "the quick"], settings=settings)
    assert first == second
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load_model(folder)
    ids = tokenizer("the quick", return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    for _ in range(5):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert tokenizer.decode(ids[0]).startswith("the quick")
    assert first.text == tokenizer.decode(ids[0])[len(tokenizer.decode(ids[0, :start])) :]


def test_a_small_top_p_is_greedy(folder):
    narrow = SamplingSettings(new_tokens=8, temperature=1.0, top_p=1e-6)
    greedy = SamplingSettings(new_tokens=8, temperature=0)
    assert sample(folder, ["the lazy"], settings=narrow) == sample(folder, ["the lazy"], settings=greedy)


def test_what_is_no_model_is_refused(folder, tmp_path):
    with pytest.raises(ConversionError, match=r"no Hugging Face model[^$]*loco export"):
        sample(tmp_path, ["a"], settings=SamplingSettings())
    model = tiny_model(layers=1)
    export_huggingface(MemoryParameters(random_parameters(model, seed=0)), model, tmp_path / "bare", tokenizer=None)
    with pytest.raises(ConversionError, match="holds no tokenizer"):
        sample(tmp_path / "bare", ["a"], settings=SamplingSettings())
    with pytest.raises(ConversionError, match="no held-out tokens"):
        huggingface_loss(folder, [])
