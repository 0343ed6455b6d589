"""Every file in configs/: loads, has the size in its name, and a deadline that fits its links."""

import re

import pytest

from loco_train.assets import shared_folder
from loco_train.config import load_run
from loco_train.config.explain import PARTS
from loco_train.config.load import available
from loco_train.config.model import ModelConfig
from loco_train.config.yaml_file import read_yaml
from loco_train.units import Bandwidth

UNITS = {"m": 1e6, "b": 1e9}
# Bits per second of the links a network file is for.
BANDWIDTHS = {"wan-100mbit": "100Mbit/s", "wan-200mbit": "200Mbit/s", "lan": "10Gbit/s"}


def network_of(run: str) -> str:
    return read_yaml(shared_folder("configs") / "runs" / f"{run}.yaml").values["network"]


def transfer_seconds(parameters: int, *, islands: int, network: str) -> float:
    """Time that a ring all-reduce of fp32 parameters spends on an island's link."""
    sent_bits = 2 * (islands - 1) / islands * 32 * parameters
    return sent_bits / Bandwidth.parse(BANDWIDTHS[network])


@pytest.mark.parametrize("part", list(PARTS))
def test_each_part_fits_into_a_run(part):
    names = available(PARTS[part])
    assert names
    for name in names:
        # data-parallel is for one island.
        load_run("quickstart", [f"{part}={name}", "islands.count=1", "parallel.tensor=1"])


@pytest.mark.parametrize("name", [name for name in available("models") if "llama" in name])
def test_models_have_the_size_in_their_name(name):
    number, unit = re.fullmatch(r"llama-([\d.]+)([mb])", name).groups()
    model = ModelConfig(**read_yaml(shared_folder("configs") / "models" / f"{name}.yaml").values)
    assert model.parameters == pytest.approx(float(number) * UNITS[unit], rel=0.05)


def test_the_model_of_factored_gossip_has_the_share_that_the_paper_gives():
    # Embedding, output and the first two of 16 layers are 43 % of its parameters.
    model = load_run("llama-1.5b-8x8").config.model
    assert model.layers == 16
    layers = (model.parameters - 2 * model.vocab_size * model.hidden_size - model.hidden_size) / model.layers
    share = (2 * model.vocab_size * model.hidden_size + 2 * layers) / model.parameters
    assert share == pytest.approx(0.43, abs=0.005)


@pytest.mark.parametrize("name", available("runs"))
def test_runs_name_themselves_and_their_shape(name):
    config = load_run(name).config
    assert config.name == name
    shape = re.search(r"-(\d+)x(\d+)$", name)
    if shape:
        assert (config.islands.count, config.parallel.ranks) == tuple(map(int, shape.groups()))


@pytest.mark.parametrize("name", [name for name in available("runs") if name != "quickstart"])
def test_deadlines_leave_room_for_the_transfer(name):
    # Twice the time on an idle link: a deadline below would call a slow island dead.
    config, network = load_run(name).config, network_of(name)
    needed = transfer_seconds(config.model.parameters, islands=config.islands.count, network=network)
    assert config.network.exchange_timeout >= 2 * needed


def test_the_quickstart_has_every_part():
    config = load_run("quickstart").config
    assert (config.islands.count, config.parallel.tensor, config.parallel.zero_stage) == (2, 2, 1)
    assert (config.method.rule, config.precision.parameters) == ("progress", "bf16")
    assert config.rounds >= 8
    assert config.model.parameters < 2e6


def test_rounds_cover_the_tokens_that_the_comments_promise():
    assert load_run("llama-1.5b-8x8").config.total_tokens == pytest.approx(10e9, rel=0.01)
    assert load_run("llama-150m-2x8").config.total_tokens == pytest.approx(2.7e9, rel=0.01)
    assert load_run("llama-7b-4x32").config.total_tokens == pytest.approx(140e9, rel=0.01)
