"""Copies of one parameter on several ranks of an island: norms over tensor parallel ranks, a tied weight over stages.

Each rank optimises its copy by the same gradients, so copies stay equal by themselves during inner steps; a value from
outside is given to the owner only and spread from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from loco_train.islands.layout import Layout
from loco_train.islands.masters import HeldShard

_CHUNK = 1 << 22  # elements hashed at a time: 32 MiB of 64-bit scratch


def is_tensor_replica(held: HeldShard) -> bool:
    """Whether every tensor parallel rank holds this same shard."""
    return held.shard.partition.dim is None


def spread_over_tensor(held: Sequence[HeldShard], layout: Layout) -> None:
    """Give tensor rank 0's masters of replicated shards to the other tensor ranks. Collective over them."""
    replicas = [h for h in held if is_tensor_replica(h)]
    if layout.tensor == 1 or not replicas:
        return
    buffer = torch.cat([h.master for h in replicas])
    dist.broadcast(
        buffer,
        src=parallel_state.get_tensor_model_parallel_src_rank(),
        group=parallel_state.get_tensor_model_parallel_group(),
    )
    for h, values in zip(replicas, torch.split(buffer, [h.shard.length for h in replicas]), strict=True):
        h.master.copy_(values)


def spread_tied(tied: HeldShard | None, layout: Layout, *, numel: int, device: torch.device) -> None:
    """Give the first stage's master of the tied weight to the last stage. Collective over both stages' data ranks.

    ZeRO packs the weight beside other parameters on each stage, so the two stages cut it at different points: the
    whole piece (numel elements, fp32) is put together on the first stage and sent.
    """
    if not (layout.is_first_stage or layout.is_last_stage):
        return
    piece = torch.zeros(numel, device=device)
    if layout.is_first_stage:
        if tied is not None:
            piece[tied.shard.start : tied.shard.start + tied.shard.length] = tied.master
        dist.all_reduce(piece, group=parallel_state.get_data_parallel_group())
    dist.broadcast(
        piece,
        src=parallel_state.get_pipeline_model_parallel_first_rank(),
        group=parallel_state.get_embedding_group(),
    )
    if layout.is_last_stage and tied is not None:
        tied.master.copy_(piece[tied.shard.start : tied.shard.start + tied.shard.length])


def digest(tensor: Tensor, *, start: int = 0) -> Tensor:
    """A 64-bit digest of a tensor's bits, int64 scalar on its device.

    Integer sums wrap and commute: the digests of a tensor's parts, each with its `start`, add up to the whole one's.
    """
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.detach().contiguous().view(-1).view(integer)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, flat.numel(), _CHUNK):
        part = flat[first : first + _CHUNK].to(torch.int64)
        places = torch.arange(start + first, start + first + part.numel(), device=tensor.device)
        # An odd multiplier that differs from place to place: swapped or shifted values change the sum.
        total += (part * (places * 0x1E3779B97F4A7C15 | 1)).sum()
    return total


def differing(digests: dict[str, Tensor], group: Any) -> list[str]:
    """Names whose digests are not the same on every rank of the group. Collective over it."""
    if not digests:
        return []
    low = torch.stack(list(digests.values()))
    high = low.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
    dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
    return [name for name, same in zip(digests, (low == high).tolist(), strict=True) if not same]
