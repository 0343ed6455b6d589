"""A corpus that every machine has: the language reference, docstrings and sources of the running Python.

Every document says something that no other does: docstrings are cut out of the sources they stand in, and what mostly
repeats earlier documents (generated tables, vendored copies) is left out, so that a held-out part is new text.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loco_train.data.files import written_whole
from loco_train.errors import EnvironmentProblem

# Installed packages are not the standard library; tests are repetitive, and Debian does not ship them.
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_TOPICS = "pydoc_data/topics.py"
_SHORTEST_DOCSTRING = 80
# Lines shorter than this ("return self", ")") repeat in any two sources.
_SHORTEST_TELLING_LINE = 20
_MOST_REPEATED = 0.5


@dataclass(frozen=True)
class CorpusReport:
    """What `write_corpus` wrote."""

    path: Path
    documents: int
    characters: int


def write_corpus(output: Path, *, on_document: Callable[[int], None] | None = None) -> CorpusReport:
    """Write the corpus to `output` as jsonl with the key "text", in an order that only the texts decide.

    Args:
        on_document: is told how many documents were found so far.

    Raises:
        EnvironmentProblem: this Python comes without the sources of its standard library.
        DataError: `output` cannot be written.
    """
    documents = collect_documents(on_document=on_document)
    with written_whole(output) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for text in documents:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return CorpusReport(output, len(documents), sum(map(len, documents)))


def collect_documents(root: Path | None = None, *, on_document: Callable[[int], None] | None = None) -> list[str]:
    """The documents of the standard library in `root` (None: the running Python's), mixed, none repeated.

    The order is that of the texts' hashes: kinds and modules are spread evenly, so any tail is like the rest.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    seen = _SeenLines()
    documents: list[str] = []
    for text in _candidates(root):
        if seen.is_new(text):
            documents.append(text)
            if on_document:
                on_document(len(documents))
    if not documents:
        raise EnvironmentProblem(
            "this Python comes without the sources of its standard library",
            got=f"no .py files in {root}",
            fix="use a full Python (Debian and Ubuntu: apt-get install python3)",
        )
    return sorted(documents, key=lambda text: hashlib.sha256(text.encode()).digest())


class _SeenLines:
    """Recognises a text that mostly repeats lines of earlier texts."""

    def __init__(self) -> None:
        self._lines: set[int] = set()

    def is_new(self, text: str) -> bool:
        lines = {line.strip() for line in text.splitlines()}
        telling = {_line_hash(line) for line in lines if len(line) >= _SHORTEST_TELLING_LINE}
        repeated = len(telling & self._lines)
        self._lines |= telling
        return bool(telling) and repeated <= _MOST_REPEATED * len(telling)


def _line_hash(line: str) -> int:
    # Python's own hash of text changes from process to process; a collision would change the corpus.
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "big")


def _candidates(root: Path) -> Iterator[str]:
    """Topics, then per file its docstrings and its source without them."""
    yield from _topics(root / _TOPICS)
    for path in _source_files(root):
        source = _read_source(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old sources with invalid escapes
                nodes = _docstring_nodes(ast.parse(source))
        except (SyntaxError, ValueError):
            continue  # templates and deliberately broken files
        for _, text in nodes:
            if len(text) >= _SHORTEST_DOCSTRING:
                yield text + "\n"
        yield _without(source, [node for node, _ in nodes])


def _topics(path: Path) -> Iterator[str]:
    """Texts of the language reference. Read from the file of `root`, not imported, so that `root` decides."""
    if not path.is_file():
        return
    for node in ast.walk(ast.parse(_read_source(path))):
        if isinstance(node, ast.Dict):
            values = [ast.literal_eval(value) for value in node.values]
            yield from (value for value in values if isinstance(value, str))


def _source_files(root: Path) -> list[Path]:
    found = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if _SKIPPED_FOLDERS.isdisjoint(relative.parts) and relative.as_posix() != _TOPICS:
            found.append((relative.as_posix(), path))
    return [path for _, path in sorted(found)]


def _read_source(path: Path) -> str:
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""


def _docstring_nodes(tree: ast.Module) -> list[tuple[ast.Expr, str]]:
    """Each docstring's statement and cleaned text, in the order of the source."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            statement = node.body[0] if node.body else None
            if text is not None and isinstance(statement, ast.Expr):
                found.append((statement, text))
    return sorted(found, key=lambda item: item[0].lineno)


def _without(source: str, statements: list[ast.Expr]) -> str:
    """The source with the lines of `statements` replaced by `...`, which keeps a body that had nothing else."""
    lines = source.splitlines(keepends=True)
    for statement in reversed(statements):
        first, stop = statement.lineno - 1, statement.end_lineno or statement.lineno
        lines[first:stop] = [lines[first][: statement.col_offset] + "...\n"]
    return "".join(lines)
