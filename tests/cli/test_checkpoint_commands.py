"""loco inspect, export and sample on a run of two islands, as a user calls them."""

import io
import json
import subprocess
import sys

import pytest
import sentencepiece
import torch
import typer
from typer.testing import CliRunner

from loco_train.cli.export import export
from loco_train.cli.inspect import inspect
from loco_train.cli.sample import sample
from loco_train.conversion.sampling import load_model
from loco_train.conversion.weight_map import weights_of
from loco_train.errors import CheckpointError, ConfigError, ConversionError
from loco_train.testing.synthetic import tiny_model, write_run


@pytest.fixture(scope="module")
def processor():
    writer = io.BytesIO()
    text = [f"one island and {i} other islands met {i * i} times" for i in range(1000)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=writer, vocab_size=340, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue())


@pytest.fixture
def run(tmp_path, processor):
    """The run folder and its parameters by (island, step)."""
    model = tiny_model(vocab_size=processor.vocab_size(), layers=1)
    attachments = {"tokenizer.model": processor.serialized_model_proto(), "config.yaml": b"name: synthetic\n"}
    parameters = write_run(tmp_path / "run", model, islands=2, steps=(10, 20), tensor=2, attachments=attachments)
    return tmp_path / "run", model, parameters


def call(command, *arguments):
    """Standard output of a command; its error is raised as it is."""
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_inspect_shows_the_run_and_each_parameter(run):
    run_dir, model, _ = run
    text = call(inspect, run_dir)
    for expected in ("synthetic (run-a)", "5,120", "0, 1 of 2", "tensor 2 x pipeline 1 x data 1", "hidden_size=64"):
        assert expected in text
    assert all(weight.name.split(".")[-2] in text for weight in weights_of(model))


def test_inspect_warns_of_a_pointer_that_is_lost_or_points_nowhere(run):
    run_dir, _, _ = run
    pointers = [run_dir / "islands" / str(island) / "checkpoints" / "latest" for island in range(2)]
    assert json.loads(call(inspect, run_dir, "--json"))["warnings"] == []
    pointers[0].unlink()
    pointers[1].write_text("step-00000030\n")
    lost, nowhere = json.loads(call(inspect, run_dir, "--json"))["warnings"]
    assert lost == f"{pointers[0]} is not there: the highest step is taken for the newest"
    assert nowhere == f"{pointers[1]} names step 30, which is not there; steps that are: 10, 20"


def test_inspect_json_holds_norms_and_digests_that_tell_islands_apart(run):
    run_dir, model, parameters = run
    document = json.loads(call(inspect, run_dir, "--json"))
    assert (document["step"], document["tokens"], document["selected_islands"]) == (20, 5120, [0, 1])
    assert document["config"]["model"]["hidden_size"] == 64
    assert [p["name"] for p in document["parameters"]] == [weight.name for weight in weights_of(model)]
    for p in document["parameters"]:
        values = [parameters[i, 20][p["name"]].double() for i in range(2)]
        mean = (values[0] + values[1]) / 2
        assert p["shape"] == list(mean.shape)
        assert p["norm"] == pytest.approx(mean.norm().item(), rel=1e-9)
        # Two islands are equally far from their mean: half of their distance.
        assert p["distance"] == pytest.approx((values[0] - values[1]).norm().item() / 2, rel=1e-6)
        assert len({p["digest"], *p["island_digests"]}) == 3
    assert {f["file"] for f in document["checkpoints"][0]["files"]} >= {"rank-001.safetensors", "tokenizer.model"}
    one = json.loads(call(inspect, f"{run_dir}@10", "--island", 1, "--json"))
    assert (one["step"], one["selected_islands"]) == (10, [1])
    assert all(p["distance"] == 0 and p["island_digests"] == [p["digest"]] for p in one["parameters"])


def test_export_writes_the_consensus_or_an_island(run, tmp_path):
    run_dir, model, parameters = run
    document = json.loads(call(export, run_dir, tmp_path / "mean", "--dtype", "float32", "--json"))
    assert document["parameters"] == model.parameters
    assert document["folder"] == str(tmp_path / "mean")
    line = call(export, run_dir, tmp_path / "one", "--island", 1, "--step", 10, "--dtype", "float32")
    assert "island 1 at step 10" in line
    mean, one = load_model(tmp_path / "mean").state_dict(), load_model(tmp_path / "one").state_dict()
    for weight in weights_of(model):
        first, second = (parameters[i, 20][weight.name].double() for i in range(2))
        for name, value in weight.split(((first + second) / 2).float()).items():
            assert torch.equal(mean[name], value), name
        for name, value in weight.split(parameters[1, 10][weight.name]).items():
            assert torch.equal(one[name], value), name


def test_sample_takes_a_checkpoint_or_an_exported_folder(run, tmp_path):
    run_dir, _, _ = run
    arguments = ("one island", "and", "--new-tokens", 8, "--seed", 3, "--json")
    from_run = json.loads(call(sample, run_dir, *arguments))
    call(export, run_dir, tmp_path / "hf", "--dtype", "float32")
    assert json.loads(call(sample, tmp_path / "hf", *arguments)) == from_run
    assert [s["prompt"] for s in from_run["samples"]] == ["one island", "and"]
    assert "one island" in call(sample, tmp_path / "hf", "one island", "--new-tokens", 4)


def test_help_needs_neither_torch_nor_transformers():
    program = (
        "import sys, loco_train.cli.export, loco_train.cli.inspect, loco_train.cli.sample;"
        "print([m for m in ('torch', 'transformers', 'safetensors') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_damage_is_found_before_anything_is_written(run, tmp_path):
    run_dir, _, _ = run
    path = run_dir / "islands/1/checkpoints/step-00000020/rank-000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    for command, arguments in ((inspect, ()), (export, (tmp_path / "hf",)), (sample, ("a",))):
        with pytest.raises(CheckpointError, match=r"rank-000\.safetensors is damaged[^$]*choose it with --step 10"):
            call(command, run_dir, *arguments)
    assert not (tmp_path / "hf").exists()
    call(export, f"{run_dir}@10", tmp_path / "hf")
    with pytest.raises(ConversionError, match="--force"):
        call(export, f"{run_dir}@10", tmp_path / "hf")
    call(export, f"{run_dir}@10", tmp_path / "hf", "--force")
    with pytest.raises(ConfigError, match="--max-shard-size is no size"):
        call(export, f"{run_dir}@10", tmp_path / "other", "--max-shard-size", "many")
