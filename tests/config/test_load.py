"""A run from its parts and overrides; every way to write it wrong is told, with place and way out."""

from pathlib import Path

import pytest

from loco_train.config import load_run
from loco_train.errors import ConfigError

RUN = """\
name: test
run_dir: some/folder
rounds: 3
model: mine.yaml
method: {use: diloco, inner_steps: 7, outer: {lr: 1.0}}
network: loopback
data:
  tokenizer: t.model
  train:
    - {path: one}
    - path: two
      weight: 2
batch: {sequence_length: 16, island: 8}
"""
MODEL = """\
layers: 2
hidden_size: 32
ffn_hidden_size: 48
attention_heads: 4
key_value_heads: 2
vocab_size: 61
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes run.yaml (RUN with replacements) and mine.yaml in the working directory."""
    monkeypatch.chdir(tmp_path)

    def write_run(*replacements: tuple[str, str], model: str = MODEL) -> str:
        text = RUN
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "run.yaml").write_text(text)
        (tmp_path / "mine.yaml").write_text(model)
        return "run.yaml"

    return write_run


def message(path: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run(path, overrides)
    text = str(caught.value)
    for jargon in ("pydantic", "http", "Input should", "Value error", "type=", "Tuple"):
        assert jargon not in text
    return text


def test_parts_by_name_by_file_inline_and_changed(write):
    config = load_run(write()).config
    assert config.model.hidden_size == 32
    assert (config.method.rule, config.method.inner_steps) == ("progress", 7)
    # `use` merges mappings inside the part: its other settings stay.
    assert (config.method.outer.lr, config.method.outer.momentum) == (1.0, 0.9)
    assert config.data.train[1].weight == 2
    assert config.network.exchange_timeout == 120


def test_the_origin_of_each_value(write):
    origins = load_run(write(), ["rounds=5", "data.train.0.path=three"]).origins
    assert origins["name"] == "run.yaml:1"
    assert origins["model.vocab_size"] == "mine.yaml:6"
    assert origins["method.inner_steps"] == "run.yaml:5"
    assert origins["method.outer.momentum"].startswith("configs/methods/diloco.yaml:")
    assert origins["data.train.1.weight"] == "run.yaml:12"
    assert (origins["rounds"], origins["data.train.0.path"]) == ("override", "override")
    assert "seed" not in origins


def test_overrides_apply_in_order_and_a_part_can_be_exchanged(write):
    config = load_run(
        write(),
        ["model.layers=3", "model=llama-150m", "seed=1", "seed=2", "islands.rendezvous=", "optimizer.betas=[0.5, 0.6]"],
    ).config
    assert (config.model.hidden_size, config.model.layers) == (768, 3)
    assert config.seed == 2
    assert config.islands.rendezvous is None
    assert config.optimizer.betas == (0.5, 0.6)


def test_an_override_may_be_a_mapping(write):
    method = load_run(write(), ["method={use: data-parallel, inner_steps: 2}"]).config.method
    assert (method.rule, method.inner_steps) == ("none", 2)


@pytest.mark.parametrize(
    ("written", "value"), [("1e-4", 1e-4), ("3.0e-4", 3e-4), ("1", 1.0), (".5", 0.5), ("1E-4", 1e-4), ("5.", 5.0)]
)
def test_numbers_as_people_write_them(write, written, value):
    # YAML 1.1 reads 1e-4 as text.
    assert load_run(write(), [f"optimizer.lr={written}"]).config.optimizer.lr == value


@pytest.mark.parametrize("name", ["no", "1e5x", "2026-01-01", "on"])
def test_text_stays_text(write, name):
    assert load_run(write(), [f"name={name}"]).config.name == name


def test_all_problems_are_told_at_once(write):
    text = message(
        write(("rounds: 3", "rounds: many")), "model.hiden_size=3", "parallel.zero_stage=7", "seed=-1", "nothing",
        "network.exchange_timeout=3parsec", "name=a b",
    )  # fmt: skip
    for part in (
        "run.yaml: 7 settings are wrong",
        "rounds (run.yaml:3): cannot have this value\n    got: 'many'\n    allowed: a whole number",
        "model.hiden_size (override): there is no such setting",
        "did you mean model.hidden_size?",
        "allowed: 1, 2 or 3",
        "seed (override): cannot have this value\n    got: -1\n    allowed: greater than or equal to 0",
        "an override is no assignment\n    got: 'nothing'\n    allowed: a.b=value",
        "got: '3parsec'\n    allowed: a number with a unit: ms, s, min, h, d",
        "got: 'a b'\n    allowed: letters, digits",
    ):
        assert part in text


def test_parts_that_are_missing_are_told_with_everything_else(write):
    text = message(write(("loopback", "loopbak")), "model=llama-151m", "model.layers=3", "rounds=x")
    assert "3 settings are wrong" in text
    assert "network (run.yaml:6): there is no network named 'loopbak'" in text
    assert "did you mean loopback?" in text
    assert "model (override): there is no model named 'llama-151m'" in text
    assert "did you mean llama-150m?" in text
    assert "llama-7b" in text


def test_an_unknown_key_shows_what_there_is_and_where_it_stands_elsewhere(write):
    text = message(write(("rounds: 3", "rounds: 3\nlr: 0.1")))
    assert text.startswith(
        "lr (run.yaml:4): there is no such setting\n  got: 0.1\n  allowed: at the top: name, run_dir"
    )
    assert "did you mean method.outer.lr or optimizer.lr?" in text


def test_an_unknown_key_in_a_part_names_the_parts_file(write):
    assert "model.layer (mine.yaml:7): there is no such setting" in message(write(model=MODEL + "layer: 3\n"))


def test_an_unknown_key_in_a_list_is_one_problem(write):
    assert message(write(("weight: 2", "wieght: 2"))).startswith("data.train.1.wieght (run.yaml:12): there is no such")


def test_a_missing_setting_says_what_it_is(write):
    text = message(write(("rounds: 3\n", ""), ("{sequence_length: 16, island: 8}", "{island: 8}")))
    assert "rounds: is not set, and has no default\n    allowed: Outer rounds in all" in text
    assert "batch.sequence_length: is not set" in text
    assert "model: is not set, and has no default\n  allowed: the name of a file in configs/models, or a mapping" in (
        message(write(("model: mine.yaml\n", "")))
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("parallel={pipeline: 2, zero_stage: 2}", "pipeline (2) > 1 works with zero_stage 1 only"),
        ("method.inner_steps=0", "method.inner_steps (override): cannot have this value\n  got: 0\n  allowed: greater"),
        ("method.inner_steps=[2, 0]", "method.inner_steps.1 (override): cannot have this value\n  got: 0"),
        ("method.inner_steps=some", "method.inner_steps (override): cannot have this value\n  got: 'some'\n"),
        ("method.inner_steps=some", "allowed: a whole number, or a list"),
        ("method.mix1.blocks=7", "allowed: 'measured', or a list"),
        ("method.mix1={peers: graph}", "peers: graph goes with a file, as `graph: FILE`; got peers: graph, no graph"),
        ("parallel.tensor=3", "model.attention_heads (4) must be a multiple of parallel.tensor (3)"),
        ("islands.index=4", "islands: index (4) must be below count (1)"),
        ("batch.micro=3", "batch.island (8) must be a multiple of batch.micro * parallel.data (3)"),
        ("model.key_value_heads=3", "attention_heads (4) must be a multiple of key_value_heads (3)"),
        ("data.train=[]", "allowed: at least 1 of them"),
        ("data.train.5.path=x", "no such item"),
        ("rounds.x=3", "rounds is a value and has no settings inside"),
        ("model=5", "allowed: the name of a file in configs/models, or a mapping of settings"),
        ("batch=3", "allowed: a mapping of settings"),
        ("name={a: 1}", "allowed: text"),
        ("telemetry.console=maybe", "allowed: true or false"),
        ("model.rope_scaling={factr: 3}", "did you mean model.rope_scaling.factor?"),
        ("rounds=[", "not valid YAML"),
        ("a..b=3", "an override is no assignment"),
    ],
)
def test_what_cannot_be(write, override, expected):
    assert expected in message(write(), override)


def test_a_key_that_stands_twice_is_refused_with_both_lines(write):
    text = message(write(("rounds: 3", "rounds: 3\nrounds: 4")))
    assert "run.yaml:4: the key rounds is given twice" in text
    assert "first at run.yaml:3" in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [1\nb: 2\n", "run.yaml:2: not valid YAML"),
        (b"a: !!python/object:os.system 1\n", "run.yaml:1: not valid YAML"),
        (b"a: \x01\n", "run.yaml: not valid YAML"),
        (b"a: \xff\n", "run.yaml is not UTF-8\n  got: byte 3"),
        (b"- a\n", "run.yaml: settings are a mapping"),
        (b"", "run.yaml: settings are a mapping"),
    ],
)
def test_files_that_are_no_settings(write, tmp_path, content, expected):
    write()
    (tmp_path / "run.yaml").write_bytes(content)
    assert expected in message("run.yaml")


def test_a_run_that_is_not_there(write):
    assert "cannot read none.yaml" in message("none.yaml")
    assert "did you mean quickstart?" in message("quikstart")


def test_values_nested_in_themselves_are_no_settings(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("name: &a [*a]\n")
    with pytest.raises(ConfigError, match="nested in themselves"):
        load_run(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got: nothing"),
        (b"- 1\n- 2\n", "mapping of keys"),
        (b"a: [1\n", "not valid YAML"),
        (b"name: \xff\n", "not UTF-8"),
        (b"rounds: true\n", "rounds .*cannot be true: it is no switch"),
        (b"method: {use: diloco, inner_steps: false}\n", "inner_steps.*cannot be false"),
        (b"parallel: {tensor: 3}\n", "must be a multiple of parallel.tensor"),
        (
            b"a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + b"".join(b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10)) for c in range(97, 103)),
            "too many values",
        ),
    ],
)
def test_settings_that_cannot_be_used_say_what_to_do(content, message, tmp_path):
    shipped = (Path(__file__).parents[2] / "configs/runs/quickstart.yaml").read_bytes()
    kept = b"" if content.split(b":")[0] not in (b"rounds", b"method", b"parallel") else shipped
    lines = [line for line in kept.splitlines(True) if line.split(b":")[0] != content.split(b":")[0]]
    path = tmp_path / "run.yaml"
    path.write_bytes(b"".join(lines) + content)
    with pytest.raises(ConfigError, match=message) as raised:
        load_run(path)
    assert "to do: " in str(raised.value)
