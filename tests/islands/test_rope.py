import math

import torch

from loco_train.config.model import RopeScaling
from loco_train.islands.rope import RotaryTable, inverse_frequencies
from loco_train.testing.tiny import tiny_run


def test_frequencies_without_scaling() -> None:
    found = inverse_frequencies(head_size=4, theta=100.0, scaling=None)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.1]))


def test_llama3_scaling_keeps_high_slows_low_and_blends_between() -> None:
    scaling = RopeScaling(factor=4.0, low_frequency_factor=1.0, high_frequency_factor=3.0, original_max_positions=64)
    plain = inverse_frequencies(head_size=64, theta=1000.0, scaling=None)
    scaled = inverse_frequencies(head_size=64, theta=1000.0, scaling=scaling)
    turns = 64 * plain / (2 * math.pi)
    assert torch.equal(scaled[turns >= 3], plain[turns >= 3])
    torch.testing.assert_close(scaled[turns <= 1], plain[turns <= 1] / 4)
    between = (turns > 1) & (turns < 3)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 4))[between].all()


def test_table_stays_fp32_when_the_model_is_cast() -> None:
    table = RotaryTable(tiny_run().model)
    angles = table.angles(5, device=torch.device("cpu"))
    assert angles.dtype == torch.float32
    assert angles.shape == (5, 1, 1, 8)
    assert torch.equal(angles[..., :4], angles[..., 4:])
