"""Resolved settings are YAML that is loaded again as the same run."""

import pytest

from loco_train.config import load_run, save_resolved
from loco_train.config.load import available
from loco_train.config.save import render


@pytest.mark.parametrize("name", available("runs"))
def test_round_trip_of_every_shipped_run(name, tmp_path):
    resolved = load_run(name)
    save_resolved(resolved, tmp_path / "saved.yaml")
    assert load_run(tmp_path / "saved.yaml").config == resolved.config
    assert [path.name for path in tmp_path.iterdir()] == ["saved.yaml"]


@pytest.mark.parametrize(
    "override",
    [
        "run_dir='a b: c # d'", "run_dir='no'", "name=1e5x", "name='1e5'", "name='010'", "optimizer.eps=1e-12",
        "optimizer.lr=0.1234567890123456789", "network.exchange_timeout=1234567.891s", "network.bucket_bytes=1234567",
        "network.bucket_bytes=12345678901B", "data.train=[{path: 'ü ä'}, {path: b, weight: 3}]",
        "data.heldout=[{path: h}]", "islands.rendezvous='[::1]:29400'", "network.interface=no",
        "model.rope_scaling={factor: 2}", "data.heldout_fraction=0",
    ],
)  # fmt: skip
def test_round_trip_of_values_that_yaml_could_misread(override, tmp_path):
    resolved = load_run("quickstart", [override])
    save_resolved(resolved, tmp_path / "saved.yaml")
    assert load_run(tmp_path / "saved.yaml").config == resolved.config


def test_each_line_says_where_its_value_comes_from():
    lines = render(load_run("llama-150m-2x8", ["rounds=5", "data.train.1.weight=7"])).splitlines()
    assert "rounds: 5  # override" in lines
    assert "seed: 1234  # default" in lines
    assert any(line.startswith("  layers: 12  # configs/models/llama-150m.yaml:") for line in lines)
    assert any(line.startswith("    - path: data/web  # configs/data/example.yaml:") for line in lines)
    assert "      weight: 7.0  # override" in lines
    values = [line for line in lines if not line.endswith(":")]
    assert all("  # " in line for line in values)
