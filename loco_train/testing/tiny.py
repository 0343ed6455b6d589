"""Tiny runs and batches for tests: a decoder of 20 thousand parameters that still has every feature."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from loco_train.config.schema import RunConfig

if TYPE_CHECKING:
    from torch import Tensor

_TINY: dict[str, Any] = {
    "name": "tiny",
    "run_dir": "unused",
    "rounds": 1,
    "device": "cpu",
    "model": {
        "layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "attention_heads": 4,
        "key_value_heads": 2,
        "vocab_size": 61,
        "vocab_divisible_by": 8,
        "max_positions": 64,
    },
    "method": {"rule": "progress", "mix2": {"peers": "all"}},
    "data": {"tokenizer": "unused", "train": [{"path": "unused"}]},
    "batch": {"sequence_length": 16, "island": 8, "micro": 2},
    # With the usual eps of 1e-8 Adam turns rounding on near-zero gradients into whole steps, and no two layouts agree.
    "optimizer": {"eps": 1e-4},
    "evaluation": {"sequences": 24},
    "precision": {"parameters": "fp32"},
}


def tiny_run(overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """A fp32 run of one island with a vocabulary of 61 padded to 64, 4 heads in 2 groups, 2 layers.

    overrides: values by dotted name, `{"parallel.tensor": 2}`.
    """
    merged = deepcopy(_TINY)
    for dotted, value in (overrides or {}).items():
        *path, last = dotted.split(".")
        section = merged
        for key in path:
            section = section.setdefault(key, {})
        section[last] = deepcopy(value)
    return RunConfig.model_validate(merged)


def island_batch(run: RunConfig, *, step: int) -> Tensor:
    """Random tokens of one inner step of one island, int64 [island, sequence_length + 1]; a function of `step`."""
    import torch

    generator = torch.Generator().manual_seed(step)
    size = (run.batch.island, run.batch.sequence_length + 1)
    return torch.randint(0, run.model.vocab_size, size, generator=generator)


def micro_batches(run: RunConfig, batch: Tensor, *, data_index: int) -> list[Tensor]:
    """A data parallel rank's contiguous share of an island's batch, cut into micro-batches."""
    share = batch.chunk(run.parallel.data)[data_index]
    return list(share.chunk(run.accumulation_steps))
