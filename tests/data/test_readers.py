import gzip
import json
import os

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from loco_train.data.readers import read_documents
from loco_train.errors import DataError

# More than one chunk of 1 MiB, characters of every UTF-8 width, line separators that JSON does not take for one.
TEXTS = ["first\nsecond", "x\u2028y\u0085z", "\u00e9 \u4f60 \U0001f600 " * 150_000, "tab\there \r\n end"]


def _jsonl(texts, key="text"):
    return "".join(json.dumps({"id": i, key: text}, ensure_ascii=i % 2 == 0) + "\n" for i, text in enumerate(texts))


def _write(path, content: str):
    raw = content.encode()
    if path.suffix == ".gz":
        raw = gzip.compress(raw, compresslevel=1)
    if path.suffix == ".zst":
        half = len(raw) // 2  # two frames, as `cat a.zst b.zst` makes
        raw = zstandard.compress(raw[:half]) + zstandard.compress(raw[half:])
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.gz", "jsonl.zst"])
def test_jsonl_gives_its_documents_in_order(tmp_path, suffix):
    path = _write(tmp_path / f"a.{suffix}", _jsonl(TEXTS))
    sizes = []
    assert list(read_documents([path], on_bytes=sizes.append)) == TEXTS
    assert sum(sizes) == path.stat().st_size


@pytest.mark.parametrize("suffix", ["txt", "txt.gz", "txt.zst"])
def test_a_text_file_is_one_document(tmp_path, suffix):
    text = "\n\n".join(TEXTS)
    assert list(read_documents([_write(tmp_path / f"A.{suffix}", text)])) == [text]


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string()])
def test_parquet_reads_the_named_column(tmp_path, kind):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"other": range(len(TEXTS)), "content": pyarrow.array(TEXTS, kind)})
    parquet.write_table(table, path, row_group_size=2)
    assert list(read_documents([path], text_key="content")) == TEXTS
    with pytest.raises(DataError, match=r"no column 'text'[\s\S]*'other', 'content'"):
        list(read_documents([path]))


def test_parquet_with_a_missing_value_names_the_row(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b", None]}), path)
    with pytest.raises(DataError, match="row 2"):
        list(read_documents([path]))


def test_files_follow_each_other_and_blank_lines_and_empty_documents_are_left_out(tmp_path):
    first = _write(tmp_path / "a.jsonl", _jsonl(["a", "", "b"]) + "\n  \n" + _jsonl(["c"]).rstrip("\n"))
    second = _write(tmp_path / "b.txt", "\ufeffd")
    assert list(read_documents([first, second])) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_documents_come_before_the_file_is_read_to_its_end(tmp_path, suffix):
    path = _write(tmp_path / f"a.{suffix}", _jsonl(TEXTS) + "broken")
    reader = read_documents([path])
    assert [next(reader) for _ in TEXTS] == TEXTS
    with pytest.raises(DataError, match=f"line {len(TEXTS) + 1}: not JSON"):
        next(reader)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "x"}', r"line 2: no key 'text'[\s\S]*'body'[\s\S]*--key"),
        ('{"text": 3}', "line 2, key 'text': not text"),
        ('{"text": null}', "line 2, key 'text': not text"),
        ('["x"]', "line 2: not a JSON object"),
        ('{"text": "x"', "line 2: not JSON"),
        ('{"text": "\\ud800"}', r"line 2, key 'text': not valid Unicode[\s\S]*ud800"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = _write(tmp_path / "a.jsonl", '{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        list(read_documents([path]))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_text_that_is_not_utf8_is_refused_with_its_byte(tmp_path, name):
    good = '{"text": "\u00e9"}\n'.encode()
    (tmp_path / name).write_bytes(good + b'{"text": "caf\xe9"}\n')
    with pytest.raises(DataError, match=rf"{name} is not UTF-8 at byte {len(good) + 13}[\s\S]*0xe9"):
        list(read_documents([tmp_path / name]))


@pytest.mark.parametrize("suffix", ["jsonl.gz", "jsonl.zst", "parquet"])
@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_archive_is_refused(tmp_path, suffix, damage):
    path = tmp_path / f"a.{suffix}"
    texts = [f"document {i * i}" for i in range(5000)]
    if suffix == "parquet":
        parquet.write_table(pyarrow.table({"text": texts}), path)
    else:
        _write(path, _jsonl(texts))
    raw = path.read_bytes()
    middle = len(raw) // 2
    path.write_bytes(raw[:middle] if damage == "cut" else raw[: middle - 200] + b"\xff" * 400 + raw[middle + 200 :])
    with pytest.raises(DataError, match=f"a.{suffix}"):
        list(read_documents([path]))


@pytest.mark.parametrize(("name", "content"), [("a.txt", ""), ("a.jsonl", "\n\n"), ("b.jsonl", '{"text": ""}\n')])
def test_a_file_without_text_is_refused(tmp_path, name, content):
    good = _write(tmp_path / "good.txt", "text")
    with pytest.raises(DataError, match=f"{name} holds no text"):
        list(read_documents([good, _write(tmp_path / name, content)]))


def test_an_unknown_or_missing_file_is_refused(tmp_path):
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(DataError, match=r"unknown kind[\s\S]*\.parquet"):
        list(read_documents([tmp_path / "a.pdf"]))
    with pytest.raises(DataError, match="no such file"):
        list(read_documents([tmp_path / "a.txt"]))


def test_what_is_no_file_is_said_to_be_none(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for name, message in (("folder.txt", "is a folder"), ("pipe.txt", "is a pipe or a device")):
        with pytest.raises(DataError, match=message):
            list(read_documents([tmp_path / name]))


def test_a_line_nested_too_deep_is_told(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(DataError, match="line 1: not JSON"):
        list(read_documents([path]))


def test_blanks_alone_are_no_text(tmp_path):
    path = tmp_path / "blank.txt"
    path.write_text(" \n\t\n")
    with pytest.raises(DataError, match="holds no text"):
        list(read_documents([path]))


def test_utf_16_without_its_mark_is_told(tmp_path):
    path = tmp_path / "wide.txt"
    path.write_bytes("text".encode("utf-16-le"))
    with pytest.raises(DataError, match="(?s)a NUL at byte 1.*iconv -f utf-16"):
        list(read_documents([path]))
