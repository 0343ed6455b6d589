"""The exported tokenizer gives sentencepiece's ids, for every kind of text that converters get wrong."""

import argparse
import io
import pydoc_data.topics
import random
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer

from loco_train.conversion.hf_tokenizer import PROBES, check_tokenizer, special_ids, write_tokenizer
from loco_train.conversion.huggingface import TokenizerSource, export_huggingface
from loco_train.data.tokenizer import train_tokenizer
from loco_train.errors import ConversionError
from loco_train.testing.synthetic import MemoryParameters, random_parameters, tiny_model

LINES = [line for topic in pydoc_data.topics.topics.values() for line in topic.splitlines() if line.strip()][:4000]

# What a tokenizer for pretraining is made with, and the settings that change how text is cut.
KINDS = {
    "bpe": {},
    "bpe without dummy prefix": {"add_dummy_prefix": False},
    "bpe, surplus spaces removed": {"remove_extra_whitespaces": True},
    "bpe, characters normalised": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "bpe with user defined pieces": {"user_defined_symbols": ["<tool>", "\n"]},
    "bpe, other special ids": {"unk_id": 3, "bos_id": -1, "eos_id": 0, "pad_id": 1},
    "unigram": {"model_type": "unigram"},
}


def train(**changes):
    """(model file, sentencepiece processor) of 700 pieces."""
    settings = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "vocab_size": 700,
        "minloglevel": 2,
        "num_threads": 1,
        **changes,
    }
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=writer, **settings)
    return writer.getvalue(), sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue())


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def trained(request):
    return train(**request.param)


def texts_of(processor):
    """Probes, every piece by itself, random runs of pieces, and pages of the corpus; no special token's own text."""
    ids = [
        i for i in range(processor.vocab_size()) if processor.id_to_piece(i) not in ("<s>", "</s>", "<unk>", "<pad>")
    ]
    pieces = [processor.id_to_piece(i).replace("\u2581", " ") for i in ids if not processor.is_byte(i)]
    rng = random.Random(0)
    runs = ["".join(rng.choices(pieces, k=rng.randrange(1, 20))) for _ in range(300)]
    odd = [
        "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(160, 50000)))) for _ in range(12))
        for _ in range(100)
    ]
    pages = ["\n".join(LINES[i : i + 40]) for i in range(0, 400, 40)]
    return [*PROBES, *pieces, *runs, *odd, *pages, "a <tool>b<tool><tool> \n c"]


def test_ids_and_text_are_sentencepieces(tmp_path, trained):
    model, processor = trained
    write_tokenizer(model, tmp_path, max_length=2048)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    normalises = processor.encode("\uff21") == processor.encode("A")
    for text in texts_of(processor):
        if normalises and not text.isascii():
            continue  # how unassigned characters normalise depends on the Unicode version; PROBES are checked below
        ids = processor.encode(text)
        assert tokenizer(text)["input_ids"] == ids, repr(text)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids, repr(text)
        if "\u2581" not in text:  # the escape of the space itself is not kept apart by sentencepiece either
            assert tokenizer.decode(ids) == processor.decode(ids), repr(text)
    check_tokenizer(tmp_path, processor.encode)


def test_literal_byte_names_are_text(tmp_path):
    model, processor = train()
    write_tokenizer(model, tmp_path, max_length=2048)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("<0x0A>", "a <0xFF><0x00> b"):
        assert tokenizer(text)["input_ids"] == processor.encode(text)
        assert len(processor.encode(text)) > 3


@pytest.mark.parametrize("vocab_size", [500, 3000])
def test_the_tokenizers_that_the_project_trains_are_exact(tmp_path, vocab_size):
    """On pages of documentation and source code, literal byte names, and characters that the vocabulary lacks."""
    sources = [Path(module.__file__).read_text() for module in (argparse, random, pydoc_data.topics)]
    ours = train_tokenizer(
        [*LINES, sources[0], "\u65e5\u672c\u8a9e \u0437\u0434\u0435\u0441\u044c"],
        tmp_path / "t.model",
        vocab_size=vocab_size,
    )
    write_tokenizer(ours.model, tmp_path / "hf", max_length=2048)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    pieces = [ours.decode([i]) for i in range(4 + 256, ours.vocab_size)]
    rng = random.Random(0)
    runs = ["".join(rng.choices(pieces, k=rng.randrange(1, 20))) for _ in range(500)]
    pages = [text[i : i + 3000] for text in sources for i in range(0, 60_000, 3000)]
    for text in [*PROBES, *pieces, *runs, *pages, "<0x0A>", "a <0xFF><0x00>\n\n\n   b", "    return\n\n\n\n        x"]:
        ids = ours.encode(text)
        assert tokenizer(text)["input_ids"] == ids, repr(text)
        assert tokenizer.decode(ids) == ours.decode(ids), repr(text)


def test_special_tokens_are_known_by_name_and_id(tmp_path, trained):
    model, processor = trained
    write_tokenizer(model, tmp_path, max_length=333)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = special_ids(model)
    expected = [i if i >= 0 else None for i in (processor.bos_id(), processor.eos_id(), processor.pad_id())]
    assert [ids.bos, ids.eos, ids.pad] == expected
    assert [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id] == expected
    assert tokenizer.unk_token_id == processor.unk_id()
    assert tokenizer("a</s>")["input_ids"][-1] == processor.eos_id()
    assert tokenizer.model_max_length == 333
    assert len(tokenizer) == processor.vocab_size()
    assert (tmp_path / "tokenizer.model").read_bytes() == model


def test_a_tokenizer_that_would_differ_is_not_exported(tmp_path):
    model, processor = train()
    write_tokenizer(model, tmp_path / "one", max_length=10)
    other = train(vocab_size=600)[1]
    with pytest.raises(ConversionError, match=r"other ids than sentencepiece for[^$]*got: \[[^$]*allowed: \["):
        check_tokenizer(tmp_path / "one", other.encode)
    small = tiny_model(layers=1)
    parameters, source = MemoryParameters(random_parameters(small, seed=0)), TokenizerSource(model, other.encode)
    with pytest.raises(ConversionError, match="other ids"):
        export_huggingface(parameters, small, tmp_path / "hf", tokenizer=source)
    assert not (tmp_path / "hf").exists()
    assert processor.vocab_size() == 700


def test_what_is_no_sentencepiece_model_of_a_known_kind_is_refused(tmp_path):
    with pytest.raises(ConversionError, match="no sentencepiece model"):
        write_tokenizer(b"\xff\xff\xff not a model", tmp_path, max_length=10)
    words = train(model_type="word", byte_fallback=False, hard_vocab_limit=False)[0]
    with pytest.raises(ConversionError, match="only sentencepiece models of kind bpe and unigram"):
        write_tokenizer(words, tmp_path, max_length=10)
