"""A small tokenizer and dataset, made once."""

import random
from pathlib import Path

import pytest

from loco_train.data.build import build_dataset
from loco_train.data.tokenizer import Tokenizer, train_tokenizer

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """Documents of a few to a hundred made-up words."""
    source = random.Random(7)
    words = ["".join(source.choices(_ALPHABET, k=source.randint(2, 8))) for _ in range(500)]
    return [" ".join(source.choices(words, k=source.randint(3, 100))) + "\n" for _ in range(200)]


@pytest.fixture(scope="session")
def tokenizer(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train_tokenizer(documents, tmp_path_factory.mktemp("tokenizer") / "tokenizer.model", vocab_size=400)


@pytest.fixture(scope="session")
def dataset(documents: list[str], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefix of a dataset of all documents. Shared: tests that change it copy it."""
    prefix = tmp_path_factory.mktemp("dataset") / "corpus.v1"
    build_dataset(documents, prefix, tokenizer)
    return prefix
