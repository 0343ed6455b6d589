import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDataset
from typer.testing import CliRunner

from loco_train.cli.data import app
from loco_train.data.tokenizer import Tokenizer
from loco_train.errors import DataError

_TOOL = Path(__file__).parents[2] / "tools" / "preprocess_data.py"


@pytest.fixture(scope="module")
def corpus(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for name, part in (("one", documents[:120]), ("two", documents[120:])):
        lines = (json.dumps({"text": text, "title": text[:9]}) + "\n" for text in part)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def _loco(*arguments: object):
    """What `loco data` prints with --json."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_tool_and_loco_data_build_write_the_same_files(corpus, tokenizer, tmp_path):
    shown = _loco(
        "build", corpus / "one.jsonl", corpus / "two.jsonl", "--output", tmp_path / "d", "--tokenizer", tokenizer.path
    )
    done = _tool(
        "--input", corpus / "*.jsonl", "--output-prefix", tmp_path / "m", "--json-keys", "text", "title",
        "--tokenizer-type", "GPTSentencePieceTokenizer", "--tokenizer-model", tokenizer.path,
        "--append-eod", "--workers", 2, "--log-interval", 50, "--dataset-impl", "mmap",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Processed 150 documents" in done.stderr
    assert "Warning" not in done.stderr
    for suffix in ("bin", "idx", "loco.json"):
        assert (tmp_path / f"m_text_document.{suffix}").read_bytes() == (tmp_path / f"d.{suffix}").read_bytes()
    assert len(IndexedDataset(str(tmp_path / "m_title_document"))) == shown["documents"] == 200


def test_the_tool_ends_with_a_message_and_nothing_written(corpus, tokenizer, tmp_path, capsys):
    (corpus / "bad.txt").write_bytes(b"caf\xe9")
    main = runpy.run_path(str(_TOOL))["main"]
    common = ["--output-prefix", f"{tmp_path}/m", "--tokenizer-type", "Llama2Tokenizer"]
    for name, model, message in (
        ("bad.txt", tokenizer.path, "bad.txt is not UTF-8 at byte 3"),
        ("none*.jsonl", tokenizer.path, "no input file"),
        ("one.jsonl", corpus / "one.jsonl", "no sentencepiece model"),
    ):
        arguments = ["--input", f"{corpus}/{name}", *common, "--tokenizer-model", str(model)]
        assert main(arguments) == DataError.exit_code
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_commands_from_text_to_tokens(corpus, documents, tmp_path):
    model, prefix, inputs = tmp_path / "t.model", tmp_path / "d", sorted(corpus.glob("*.jsonl"))
    trained = _loco("tokenizer", *inputs, "--output", model, "--vocab-size", 350)
    tokenizer = Tokenizer(model)
    assert (trained["vocab_size"], trained["sha256"]) == (350, tokenizer.sha256)
    built = _loco("build", *inputs, "--output", prefix, "--tokenizer", model, "--no-append-eos", "--threads", 1)
    data = IndexedDataset(str(prefix))
    ids = np.concatenate(data[:])
    assert tokenizer.decode(ids.tolist()) == "".join(documents)
    assert (built["tokens"], built["documents"]) == (len(ids), len(documents))


def test_a_tokenizer_that_datasets_were_built_with_is_not_replaced_unasked(corpus, tmp_path):
    model = tmp_path / "t.model"
    arguments = ["tokenizer", str(corpus / "one.jsonl"), "--output", str(model), "--vocab-size"]
    CliRunner().invoke(app, [*arguments, "350"], catch_exceptions=False)
    before = model.read_bytes()
    with pytest.raises(DataError, match="--overwrite"):
        CliRunner().invoke(app, [*arguments, "340"], catch_exceptions=False)
    assert model.read_bytes() == before
    CliRunner().invoke(app, [*arguments, "340", "--overwrite"], catch_exceptions=False)
    assert Tokenizer(model).vocab_size == 340


def test_results_for_people(corpus, tokenizer, tmp_path):
    arguments = ["build", str(corpus / "one.jsonl"), "--output", str(tmp_path / "d"), "--tokenizer"]
    result = CliRunner().invoke(app, [*arguments, str(tokenizer.path)], catch_exceptions=False)
    assert "documents" in result.stdout
    assert "120" in result.stdout
    with pytest.raises(DataError, match="already"):
        CliRunner().invoke(app, [*arguments, str(tokenizer.path)], catch_exceptions=False)


def test_the_commands_start_without_torch():
    code = "import sys, loco_train.cli.data; sys.exit('torch' in sys.modules or 'sentencepiece' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
