"""A corpus that every machine has: the language reference, docstrings and sources of the running Python.

Every document says something that no other does: docstrings are cut out of the sources they stand in, and what mostly
repeats other documents (generated tables, vendored copies) is left out, so that a held-out part is new text.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
    documents = _distinct(_counted(_candidates(root), on_document))
    if not documents:
        raise EnvironmentProblem(
            "this Python comes without the sources of its standard library",
            got=f"no .py files in {root}",
            fix="use a full Python (Debian and Ubuntu: apt-get install python3)",
        )
    return sorted(documents, key=lambda text: hashlib.sha256(text.encode()).digest())


def _counted(texts: Iterable[str], on_document: Callable[[int], None] | None) -> Iterator[str]:
    for count, text in enumerate(texts, start=1):
        if on_document:
            on_document(count)
        yield text


def _distinct(texts: Iterable[str]) -> list[str]:
    """Texts most of whose lines stand in no other, in order; of equal texts the first.

    Asking about all other texts, not only earlier ones, also finds a short text that a longer one contains.
    """
    lines_of = {text: _telling_lines(text) for text in texts}
    occurrences = Counter(line for lines in lines_of.values() for line in lines)
    return [
        text
        for text, lines in lines_of.items()
        if lines and sum(occurrences[line] > 1 for line in lines) <= _MOST_REPEATED * len(lines)
    ]


def _telling_lines(text: str) -> set[str]:
    stripped = {line.strip() for line in text.splitlines()}
    return {line for line in stripped if len(line) >= _SHORTEST_TELLING_LINE}


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
    lines = source.split("\n")  # as the parser counts; splitlines would also split at form feeds
    for statement in reversed(statements):
        first, stop = statement.lineno - 1, statement.end_lineno or statement.lineno
        lines[first:stop] = [lines[first][: statement.col_offset] + "..."]
    return "\n".join(lines)
