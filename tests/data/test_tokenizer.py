import pytest

from loco_train.data.tokenizer import Tokenizer, train_tokenizer
from loco_train.errors import DataError

ODD_TEXTS = [
    "", " ", "  leading", "trailing  ", "\ttabs\t\there\t", "line\r\nends\r\n\r\n", "\n\n\n", "a\u00a0b\u3000c\u200b",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301 \u00e9 \ufb01 \u2460", "\0zero\0",
    "\u2047 \u2048", "<s></s><unk><pad><0x0A>", "\ufeffmark", "\u4f60\u597d\u043f\u0440\u0438",
    "def f(x):\n    return  x\n",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_text_comes_back_exactly(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_text_never_becomes_a_special_token(tokenizer):
    assert not set(tokenizer.encode("<unk><s></s><pad>")) & {0, 1, 2, 3}


def test_special_ids_and_size(tokenizer):
    assert tokenizer.vocab_size == 400
    assert tokenizer.eos == 2
    assert tokenizer.decode([1, *tokenizer.encode("abc"), 2, 3]) == "abc"


def test_several_threads_give_the_same_ids(tokenizer, documents):
    assert tokenizer.encode_all(documents, threads=3) == [tokenizer.encode(text) for text in documents]


def test_training_is_reproducible(tokenizer, documents, tmp_path):
    again = train_tokenizer(iter(documents), tmp_path / "again.model", vocab_size=400)
    assert again.sha256 == tokenizer.sha256
    assert (tmp_path / "again.model").read_bytes() == tokenizer.model


def test_long_documents_and_tabs_are_trained_on(tmp_path):
    """sentencepiece by itself would leave out both with a warning only."""
    long_line = "needle haystack " * 2000
    trained = train_tokenizer([long_line, "thread\t" * 4000], tmp_path / "t.model", vocab_size=290)
    assert len(trained.encode("needle")) == 1
    assert len(trained.encode("thread")) == 1


def test_training_stops_at_max_bytes(tmp_path):
    def endless():
        while True:
            yield "some words to learn from, over and over\n" * 100

    assert train_tokenizer(endless(), tmp_path / "t.model", vocab_size=290, max_bytes=2**16).vocab_size == 290


def test_too_little_text_names_the_largest_size_that_works(tmp_path):
    with pytest.raises(DataError, match="at most") as caught:
        train_tokenizer(["hello world hello"], tmp_path / "t.model", vocab_size=4000)
    assert not list(tmp_path.iterdir())
    largest = int(str(caught.value.allowed).rsplit(" ", 1)[1])
    assert train_tokenizer(["hello world hello"], tmp_path / "t.model", vocab_size=largest).vocab_size == largest


def test_too_small_a_vocabulary_names_the_smallest_that_works(tmp_path, documents):
    with pytest.raises(DataError, match="at least") as caught:
        train_tokenizer(documents, tmp_path / "t.model", vocab_size=100)
    smallest = int(str(caught.value.allowed).rsplit(" ", 1)[1])
    assert train_tokenizer(documents, tmp_path / "t.model", vocab_size=smallest).vocab_size == smallest


@pytest.mark.parametrize("texts", [[], [""], ["\t\t"]])
def test_no_text_is_an_error(tmp_path, texts):
    with pytest.raises(DataError, match="there is no text"):
        train_tokenizer(texts, tmp_path / "t.model", vocab_size=300)


def test_a_missing_or_damaged_model_is_an_error(tokenizer, tmp_path):
    with pytest.raises(DataError, match="cannot read the tokenizer"):
        Tokenizer(tmp_path / "missing.model")
    for content in (b"", b"no model", tokenizer.model[: len(tokenizer.model) // 2]):
        (tmp_path / "damaged.model").write_bytes(content)
        with pytest.raises(DataError, match="damaged or no sentencepiece model"):
            Tokenizer(tmp_path / "damaged.model")


def test_decoding_an_unknown_id_is_an_error(tokenizer):
    with pytest.raises(DataError, match="no such token id"):
        tokenizer.decode([5, 400])
