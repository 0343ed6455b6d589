"""Initial weights, from the run's seed and a parameter's name alone: equal for every layout of every island."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from loco_train.config.model import ModelConfig

_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
_INTO_RESIDUAL = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")


def initial_values(model: ModelConfig, *, seed: int) -> Callable[[str, tuple[int, ...]], Tensor]:
    """A function from a logical parameter's name and whole shape to its initial value, fp32 on the CPU.

    Norm gains are one, matrices normal with init_std, those that end in the residual stream divided by
    sqrt(2 * layers) (GPT-2). Padding rows of the vocabulary are zero: no gradient ever reaches them and weight decay
    leaves them, so they stay what they are in every island.
    """

    def value(name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape)
        std = model.init_std
        if model.depth_scaled_init and name.endswith(_INTO_RESIDUAL):
            std /= math.sqrt(2 * model.layers)
        whole = torch.empty(shape).normal_(0.0, std, generator=_generator(seed, name))
        if name in _VOCABULARY:
            whole[model.vocab_size :] = 0
        return whole

    return value


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
