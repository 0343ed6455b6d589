import json
import random
import textwrap

import pytest

from loco_train.data.standard_library import collect_documents, write_corpus
from loco_train.errors import EnvironmentProblem

_MODULE = '''
    """The module tells at length what all of its contents are good for, and when they are not."""
    \f
    class Alone(Exception):
        """An error whose body holds nothing but this text, which becomes a document of its own, whole."""

    def work(argument):
        """Short."""
        value_of_the_work = argument * 2  # an umlaut: \u00e4
        return value_of_the_work
'''


@pytest.fixture
def library(tmp_path):
    """A library of three modules, a table that repeats one of them, topics, and what is to be skipped."""
    root = tmp_path / "python3"
    contents = {
        "module.py": _MODULE,
        "package/copy.py": _MODULE + "\n    a_line_of_its_own_in_the_copy = True\n",
        "broken.py": "def broken(:\n",
        "latin.py": "# -*- coding: latin-1 -*-\nname_of_a_french_word = 'caf\u00e9'\n",
        "pydoc_data/topics.py": "topics = {'assert': 'The assert statement, explained in one long line of text.\\n'}\n",
        "test/test_module.py": "the_line_of_a_test_that_is_left_out = 1\n",
        "site-packages/other.py": "the_line_of_a_package_that_is_left_out = 1\n",
    }
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content), encoding="latin-1" if name == "latin.py" else "utf-8")
    return root


def test_topics_docstrings_and_sources_become_documents(library):
    (library / "package" / "copy.py").unlink()
    documents = collect_documents(library)
    assert sorted(text.strip() for text in documents) == sorted(
        [
            "The assert statement, explained in one long line of text.",
            "The module tells at length what all of its contents are good for, and when they are not.",
            "An error whose body holds nothing but this text, which becomes a document of its own, whole.",
            "# -*- coding: latin-1 -*-\nname_of_a_french_word = 'caf\u00e9'",
            "...\n\f\nclass Alone(Exception):\n    ...\n\ndef work(argument):\n    ...\n"
            "    value_of_the_work = argument * 2  # an umlaut: \u00e4\n    return value_of_the_work",
        ]
    )


def test_what_mostly_repeats_other_documents_is_left_out(library):
    texts = "".join(collect_documents(library))
    assert texts.count("The module tells at length") == 1
    assert "value_of_the_work" not in texts  # each of the two sources is mostly in the other
    assert "left_out" not in texts


def test_a_python_without_sources_is_an_error(tmp_path):
    with pytest.raises(EnvironmentProblem, match="without the sources"):
        collect_documents(tmp_path)


def test_the_running_python_gives_a_corpus_whose_heldout_part_is_new_and_alike(tmp_path):
    counts = []
    report = write_corpus(tmp_path / "a.jsonl", on_document=counts.append)
    texts = [json.loads(line)["text"] for line in report.path.read_text("utf-8").split("\n")[:-1]]
    assert (len(texts), sum(map(len, texts))) == (report.documents, report.characters)
    assert counts == list(range(1, len(counts) + 1))
    assert report.characters > 5_000_000
    assert len(set(texts)) == len(texts)
    heldout, train = texts[-len(texts) // 20 :], texts[: -len(texts) // 20]
    known = {line.strip() for text in train for line in text.splitlines()}
    for text in random.Random(1).sample(heldout, 50):
        telling = {line.strip() for line in text.splitlines() if len(line.strip()) >= 20}
        assert 2 * len(telling & known) <= len(telling)
    # Both kinds, prose and code, stand in the tail as in the rest: shares of a few hundred draws, deviation 0.03.
    code = [sum("\n    return" in text or "import " in text for text in part) / len(part) for part in (heldout, train)]
    assert abs(code[0] - code[1]) < 0.15
