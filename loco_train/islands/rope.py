"""Rotary positions (arXiv 2104.09864) with Llama-3 frequency scaling (arXiv 2407.21783, section 3.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from loco_train.config.model import ModelConfig, RopeScaling


def inverse_frequencies(*, head_size: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Angle per position of each pair of dimensions, fp32 [head_size / 2].

    With scaling, wavelengths longer than original_max_positions / low_frequency_factor turn `factor` times slower,
    those shorter than original_max_positions / high_frequency_factor are kept, and between them the two are blended
    linearly in the number of turns over original_max_positions.
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    frequencies: Tensor = 1.0 / theta**exponents
    if scaling is None:
        return frequencies
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)


class RotaryTable:
    """Angles by position, made once for each length and device and shared by all layers.

    Not a module with a buffer on purpose: DeepSpeed casts a module's buffers to bf16, and angles of some thousand
    radians in bf16 are off by whole turns.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._frequencies = inverse_frequencies(
            head_size=model.head_size, theta=model.rope_theta, scaling=model.rope_scaling
        )
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def angles(self, length: int, *, device: torch.device) -> Tensor:
        """fp32 [length, 1, 1, head_size]; both halves of a head turn by the same angles (Hugging Face's layout)."""
        key = (length, device)
        if key not in self._tables:
            angles = torch.outer(torch.arange(length, dtype=torch.float32), self._frequencies)
            self._tables[key] = torch.cat([angles, angles], dim=-1)[:, None, None, :].to(device)
        return self._tables[key]
