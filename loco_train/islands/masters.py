"""The fp32 masters of an engine, parameter by parameter: where ZeRO keeps this rank's part, and how to refresh.

DeepSpeed offers whole parameters (a collective for each) and, for ZeRO 3 only, local parts; the parts of ZeRO 1 and 2
are found through the mappings that its checkpoints use. All of that knowledge is in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from loco_train.islands.inner_optimizer import InnerState
from loco_train.islands.logical import logical_of
from loco_train.shards import Shard


@dataclass(frozen=True)
class HeldShard:
    """A shard that this rank holds.

    master: live fp32 view, [shard.length]. moments: live views of the same shape, by name.
    copies: the same range of every tensor that forward and backward use, fetched when called; of the parameters' dtype.
    """

    shard: Shard
    master: Tensor
    copies: Callable[[], list[Tensor]]
    moments: dict[str, Tensor] = field(default_factory=dict)


class Masters(Protocol):
    """What differs between the layouts of ZeRO."""

    held: tuple[HeldShard, ...]
    state: InnerState

    def refresh(self) -> None:
        """Make what forward and backward use equal the masters again. Collective over data parallel ranks."""

    def whole_pieces(self) -> list[tuple[str, Tensor]]:
        """Low-precision tensor parallel pieces that this rank holds whole, by name; equal on all data ranks."""


def masters_of(zero: Any, parameters: Iterable[Parameter]) -> Masters:
    """Masters of a DeepSpeed ZeRO optimizer over marked parameters, in the parameters' order."""
    ordered = list(parameters)
    if isinstance(zero, DeepSpeedZeroOptimizer_Stage3):
        return FullyShardedMasters(zero, ordered)
    return PackedMasters(zero, ordered)


class PackedMasters:
    """ZeRO 1 and 2: parameters packed end to end per optimizer group, cut into one range for each data rank."""

    def __init__(self, zero: Any, parameters: Sequence[Parameter]) -> None:
        self._zero = zero
        self._parameters = parameters
        is_bf16_optimizer = isinstance(zero, BF16_Optimizer)
        flats = zero.fp32_groups_flat_partition if is_bf16_optimizer else zero.single_partition_of_fp32_groups
        self.state = InnerState(_inner(zero), list(flats))
        held = [self._hold(p, flats[p._hp_mapping.param_group_index]) for p in parameters if p._hp_mapping is not None]  # type: ignore[attr-defined]
        self.held = tuple(held)

    def _hold(self, parameter: Parameter, flat: Tensor) -> HeldShard:
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        in_piece, in_flat = mapping.lp_fragment_address, mapping.hp_fragment_address
        return HeldShard(
            shard=_shard(parameter, start=in_piece.start, length=in_piece.numel),
            master=flat.detach().narrow(0, in_flat.start, in_flat.numel),
            copies=lambda: [parameter.detach().view(-1).narrow(0, in_piece.start, in_piece.numel)],
            moments={
                name: moment.narrow(0, in_flat.start, in_flat.numel)
                for name, moment in self.state.moments(flat).items()
            },
        )

    def refresh(self) -> None:
        self._zero.update_lp_params()

    def whole_pieces(self) -> list[tuple[str, Tensor]]:
        return [(logical_of(p).name, p.detach()) for p in self._parameters]


class FullyShardedMasters:
    """ZeRO 3: every data rank holds an equal range of every parameter; the last one's may end in padding."""

    def __init__(self, zero: Any, parameters: Sequence[Parameter]) -> None:
        self._zero = zero
        self._rank = dist.get_rank(zero.dp_process_group)
        self.state = InnerState(_inner(zero), list(zero.fp32_partitioned_groups_flat))
        held = [self._hold(parameter) for parameter in parameters]
        self.held = tuple(h for h in held if h.shard.length)

    def _hold(self, parameter: Any) -> HeldShard:
        group, offset, size = self._zero.grad_position[self._zero.get_param_id(parameter)]
        start = self._rank * size
        length = max(0, min(size, parameter.ds_numel - start))
        flat = self._zero.fp32_partitioned_groups_flat[group]
        return HeldShard(
            shard=_shard(parameter, start=start, length=length),
            master=flat.detach().narrow(0, offset, length),
            copies=lambda: _local_and_gathered(parameter, start=start, length=length),
            moments={name: moment.narrow(0, offset, length) for name, moment in self.state.moments(flat).items()},
        )

    def refresh(self) -> None:
        # Small parameters stay gathered between steps, and gathering what is gathered does nothing: without the
        # release the next forward pass would use what they were before.
        self._zero.checkpoint_event_prologue()
        for group in range(len(self._zero.fp16_groups)):
            self._zero._reassign_or_swap_out_partitioned_parameters(group)
        self._zero.checkpoint_event_epilogue()

    def whole_pieces(self) -> list[tuple[str, Tensor]]:
        return [(logical_of(p).name, p.detach()) for p in self._zero.persistent_parameters]


def _local_and_gathered(parameter: Any, *, start: int, length: int) -> list[Tensor]:
    local = parameter.ds_tensor.detach().view(-1)[:length]
    if parameter.ds_status is not ZeroParamStatus.AVAILABLE:
        return [local]
    return [local, parameter.detach().view(-1)[start : start + length]]


def _inner(zero: Any) -> Optimizer:
    optimizer = zero.optimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def _shard(parameter: Parameter, *, start: int, length: int) -> Shard:
    logical = logical_of(parameter)
    is_second_copy = bool(getattr(parameter, "ds_pipe_replicated", False))
    return Shard(logical.name, logical.shape, logical.partition, start, length, owner=not is_second_copy)
