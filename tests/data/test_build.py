import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDataset

from loco_train.data.build import build_dataset
from loco_train.data.card import load_card
from loco_train.errors import DataError
from loco_train.files import hash_file

_ENDLESS_BUILD = """
import sys
from pathlib import Path
from loco_train.data.build import build_dataset
from loco_train.data.tokenizer import Tokenizer

def endless():
    while True:
        yield "words without an end " * 2000

build_dataset(endless(), Path(sys.argv[1]), Tokenizer(sys.argv[2]), overwrite=True, threads=1)
"""


def test_megatron_reads_every_document_back(dataset, documents, tokenizer):
    found = IndexedDataset(str(dataset))
    assert found.index.dtype is np.uint16
    assert list(found.document_indices) == list(range(len(documents) + 1))
    for text, ids in zip(documents, found[:], strict=True):
        assert ids.tolist() == [*tokenizer.encode(text), tokenizer.eos]


def test_the_card_says_what_is_there(dataset, documents, tokenizer):
    card = load_card(dataset)
    sizes = [len(tokenizer.encode(text)) + 1 for text in documents]
    assert (card.documents, card.tokens, card.bin_bytes) == (len(documents), sum(sizes), 2 * sum(sizes))
    assert card.largest_id == max(max(tokenizer.encode(text)) for text in documents)
    assert (card.tokenizer_sha256, card.vocab_size) == (tokenizer.sha256, 400)
    assert card.bin_sha256 == hash_file(dataset.with_name("corpus.v1.bin"))
    assert card.idx_sha256 == hash_file(dataset.with_name("corpus.v1.idx"))


def test_without_eos_and_on_several_threads(documents, tokenizer, tmp_path):
    build_dataset(documents, tmp_path / "d", tokenizer, append_eos=False, threads=3)
    found = IndexedDataset(str(tmp_path / "d"))
    assert np.concatenate(found[:]).tolist() == [i for text in documents for i in tokenizer.encode(text)]


def test_documents_are_streamed_and_counted(tokenizer, tmp_path):
    counts = []
    build_dataset((f"text {i}" for i in range(7)), tmp_path / "d", tokenizer, on_document=counts.append)
    assert counts == list(range(1, 8))


def test_an_existing_dataset_is_kept_unless_asked(documents, tokenizer, tmp_path):
    prefix = tmp_path / "d"
    build_dataset(documents[:5], prefix, tokenizer)
    with pytest.raises(DataError, match="already"):
        build_dataset(documents, prefix, tokenizer)
    assert load_card(prefix).documents == 5
    build_dataset(documents, prefix, tokenizer, overwrite=True)
    assert load_card(prefix).documents == len(IndexedDataset(str(prefix))) == len(documents)


def test_no_text_leaves_nothing(tokenizer, tmp_path):
    with pytest.raises(DataError, match="no text"):
        build_dataset([], tmp_path / "d", tokenizer)
    assert not list(tmp_path.iterdir())


def test_an_error_while_reading_leaves_nothing(tokenizer, tmp_path):
    def broken():
        yield "some text"
        raise DataError("line 2 is damaged")

    with pytest.raises(DataError, match="line 2 is damaged"):
        build_dataset(broken(), tmp_path / "d", tokenizer)
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_nothing(documents, tokenizer, tmp_path):
    """A limit on the size of files stands for a full disk: the same error of the same system call."""
    with _file_size_limit(20_000), pytest.raises(DataError, match="cannot write"):
        build_dataset(documents * 20, tmp_path / "d", tokenizer)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        build_dataset(documents, tmp_path / "file" / "d", tokenizer)


def test_a_killed_build_leaves_nothing_under_the_name(dataset, documents, tokenizer, tmp_path):
    """Neither where there was nothing, nor where there was a dataset, which stays whole."""
    fresh, old = tmp_path / "fresh" / dataset.name, tmp_path / "old" / dataset.name
    fresh.parent.mkdir()
    shutil.copytree(dataset.parent, old.parent)
    builds = [_start_endless_build(prefix, tokenizer) for prefix in (fresh, old)]
    for prefix, process in zip((fresh, old), builds, strict=True):
        with process:
            _wait_for_megabyte(prefix.parent, process)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    assert _named_files(fresh.parent) == {}
    assert _named_files(old.parent) == _named_files(dataset.parent)
    build_dataset(documents[:3], fresh, tokenizer)
    build_dataset(documents[:3], old, tokenizer, overwrite=True)
    assert len(IndexedDataset(str(fresh))) == len(IndexedDataset(str(old))) == 3


def _start_endless_build(prefix, tokenizer) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _ENDLESS_BUILD, str(prefix), str(tokenizer.path)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _named_files(folder) -> dict[str, str]:
    """Hashes of all but the hidden, temporary files."""
    return {path.name: hash_file(path) for path in folder.iterdir() if not path.name.startswith(".")}


def _wait_for_megabyte(folder, process) -> None:
    deadline = time.monotonic() + 120
    while not any(re.search(r"\.bin\.tmp", p.name) and p.stat().st_size > 2**20 for p in folder.iterdir()):
        assert process.poll() is None, "the build ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def _file_size_limit(size_bytes: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
