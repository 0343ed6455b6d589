"""Logical parameters of a model: the name, whole shape and partition that each torch parameter carries, and cutting."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from loco_train.shards import Partition, Shard

_MARK = "loco_logical"


@dataclass(frozen=True)
class LogicalParameter:
    """name: Megatron-core's GPTModel name. shape: whole, vocabulary padding included. partition: this rank's piece."""

    name: str
    shape: tuple[int, ...]
    partition: Partition

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1


def mark(parameter: Parameter, logical: LogicalParameter) -> None:
    """Tie a torch parameter to its logical one; engines change a parameter's data and shape but keep the object."""
    setattr(parameter, _MARK, logical)
    # DeepSpeed counts a gradient in the global norm on every tensor parallel rank, or on the first one only, by this.
    parameter.tensor_model_parallel = logical.partition.dim is not None and logical.partition.count > 1  # type: ignore[attr-defined]


def logical_of(parameter: Parameter) -> LogicalParameter:
    logical = getattr(parameter, _MARK)
    assert isinstance(logical, LogicalParameter)
    return logical


def cut_piece(whole: Tensor, partition: Partition) -> Tensor:
    """The tensor parallel piece of a whole parameter: of each fused block along the cut dimension, its part."""
    if partition.dim is None or partition.count == 1:
        return whole
    blocks = whole.chunk(partition.blocks, dim=partition.dim)
    return torch.cat(
        [block.chunk(partition.count, dim=partition.dim)[partition.index] for block in blocks], partition.dim
    )


def cut_shard(whole: Tensor, shard: Shard) -> Tensor:
    """The elements of a whole parameter that a shard holds, flattened, [shard.length]."""
    return cut_piece(whole, shard.partition).reshape(-1)[shard.start : shard.start + shard.length]
