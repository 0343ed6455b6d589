"""Documents out of text files: txt, jsonl (both also .gz and .zst) and parquet, streamed."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from loco_train.errors import DataError

_CHUNK_BYTES = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SUFFIXES = ("txt", "jsonl", "json", "txt.gz", "jsonl.gz", "json.gz", "txt.zst", "jsonl.zst", "json.zst", "parquet")

OnBytes = Callable[[int], None]

_NAME_IT = "name what holds the text by --key (in tools/preprocess_data.py: --json-keys)"


def read_documents(paths: Iterable[Path], *, text_key: str = "text", on_bytes: OnBytes | None = None) -> Iterator[str]:
    """The documents of `paths`, file after file, in order. Documents without text, or of blanks alone, are left out.

    A txt file is one document. A jsonl file (json: the same) has one object a line, a parquet file one row a
    document; `text_key` names the field or column. All text is UTF-8; a byte order mark at the start is dropped.

    Args:
        paths: files whose names end in one of `SUFFIXES`.
        on_bytes: is told how many bytes of the files were read since the last call, for progress bars.

    Raises:
        DataError: a missing or unreadable file, an unknown suffix, a damaged archive, text that is not UTF-8 (with
            its byte position), a line without the key (with its number), or a file without any text.
    """
    for path in paths:
        empty = True
        for document in _read_file(path, text_key=text_key, on_bytes=on_bytes or _ignore):
            if document.strip():
                empty = False
                yield document
        if empty:
            raise DataError(f"{path} holds no text", fix="leave the file out, or check how it was made")


def _read_file(path: Path, *, text_key: str, on_bytes: OnBytes) -> Iterator[str]:
    name = path.name.lower()
    if path.is_dir():
        raise DataError(f"{path} is a folder", fix=f"name the files in it: {path}/*.jsonl")
    if not name.endswith(tuple(f".{suffix}" for suffix in SUFFIXES)):
        raise DataError(
            f"unknown kind of text file: {path}",
            allowed="names ending in ." + ", .".join(SUFFIXES),
            fix="rename it, or convert it to one of these",
        )
    if not path.exists():
        raise DataError(f"no such file: {path}", fix="check the path")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device", fix="write its content to a file first")
    if name.endswith(".parquet"):
        return _parquet(path, text_key=text_key, on_bytes=on_bytes)
    if ".json" in "".join(path.suffixes[-2:]).lower():
        return _jsonl(path, text_key=text_key, on_bytes=on_bytes)
    return _text(path, on_bytes=on_bytes)


def _ignore(count: int) -> None:
    pass


def _text(path: Path, *, on_bytes: OnBytes) -> Iterator[str]:
    raw = b"".join(_chunks(path, on_bytes=on_bytes))
    if b"\0" in raw:
        # UTF-16 without its mark is valid UTF-8, with a NUL beside each letter.
        raise DataError(
            f"{path} is no text: it holds a NUL at byte {raw.index(0)}",
            fix="leave the file out, or convert it, e.g. iconv -f utf-16 -t utf-8",
        )
    yield _decode(raw, path=path, position=0)


def _jsonl(path: Path, *, text_key: str, on_bytes: OnBytes) -> Iterator[str]:
    position = 0
    for number, line in enumerate(_lines(_chunks(path, on_bytes=on_bytes)), start=1):
        text = _decode(line, path=path, position=position)
        position += len(line)
        if text.strip():
            yield _field(text, text_key=text_key, place=f"{path}, line {number}")


def _field(line: str, *, text_key: str, place: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: not JSON", got=str(error), allowed="one JSON object a line", fix="correct or remove the line"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: not a JSON object", got=type(record).__name__, allowed="one JSON object a line")
    if text_key not in record:
        raise DataError(
            f"{place}: no key {text_key!r}",
            got=", ".join(map(repr, record)) or "no keys",
            fix=_NAME_IT,
        )
    return _checked(record[text_key], place=f"{place}, key {text_key!r}")


def _checked(value: Any, *, place: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{place}: not text", got=type(value).__name__, allowed="a string")
    if not value.isascii():
        # JSON can spell half of a surrogate pair, which is no character and has no UTF-8.
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{place}: not valid Unicode", got=ascii(value[error.start]), allowed="characters"
            ) from error
    return value


def _decode(raw: bytes, *, path: Path, position: int) -> str:
    skipped = len(_BYTE_ORDER_MARK) if position == 0 and raw.startswith(_BYTE_ORDER_MARK) else 0
    try:
        return raw[skipped:].decode()
    except UnicodeDecodeError as error:
        byte = position + skipped + error.start
        raise DataError(
            f"{path} is not UTF-8 at byte {byte}",
            got=f"0x{raw[skipped + error.start]:02x}",
            fix="convert it, e.g. iconv -f latin1 -t utf-8",
        ) from error


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines with their ends. Only \\n ends a line: JSON text may hold other separators."""
    rest: list[bytes] = []
    for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*rest, line, b"\n"])
            rest = []
        rest.append(last)
    if any(rest):
        yield b"".join(rest)


def _chunks(path: Path, *, on_bytes: OnBytes) -> Iterator[bytes]:
    """The file's bytes, decompressed."""
    import zstandard

    decompress = {".gz": _gzip_chunks, ".zst": _zstd_chunks}.get(path.suffix.lower(), _plain_chunks)
    told = 0
    try:
        with open(path, "rb") as raw:
            for chunk in decompress(raw):
                yield chunk
                on_bytes(raw.tell() - told)
                told = raw.tell()
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, EOFError) as error:
        raise DataError(f"{path} is damaged or cut off", got=str(error), fix="fetch or make the file again") from error
    except OSError as error:
        raise DataError(f"cannot read {path}", got=error.strerror or str(error)) from error


def _plain_chunks(raw: IO[bytes]) -> Iterator[bytes]:
    while chunk := raw.read(_CHUNK_BYTES):
        yield chunk


def _gzip_chunks(raw: IO[bytes]) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=raw) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _zstd_chunks(raw: IO[bytes]) -> Iterator[bytes]:
    """zstandard's own stream reader takes a cut-off frame for a complete one, so frames are followed here."""
    import zstandard

    frame: Any = None
    while chunk := raw.read(_CHUNK_BYTES):
        while chunk:
            frame = frame or zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
            yield frame.decompress(chunk)
            chunk, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the last frame is incomplete")


def _parquet(path: Path, *, text_key: str, on_bytes: OnBytes) -> Iterator[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if text_key not in file.schema_arrow.names:
                columns = ", ".join(map(repr, file.schema_arrow.names))
                raise DataError(f"{path}: no column {text_key!r}", got=columns, fix=_NAME_IT)
            share = path.stat().st_size / max(file.metadata.num_rows, 1)
            row = 0
            for batch in file.iter_batches(batch_size=1024, columns=[text_key]):
                for value in batch.column(0):
                    yield _checked(value.as_py(), place=f"{path}, row {row}, column {text_key!r}")
                    row += 1
                on_bytes(round(batch.num_rows * share))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is damaged or no parquet file", got=error, fix="fetch or make the file again"
        ) from error
