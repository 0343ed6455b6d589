"""What the outer side sees of an engine: this rank's fp32 master shards, read and written in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from loco_train.errors import CheckpointError
from loco_train.islands import copies
from loco_train.islands.layout import Layout
from loco_train.islands.logical import cut_shard
from loco_train.islands.masters import HeldShard, Masters
from loco_train.shards import FlatLayout, Shard

TIED_NAME = "embedding.word_embeddings.weight"


class CopiesDiffer(AssertionError):
    """Copies of one parameter that must be equal are not: the engine's state is broken, which is a bug."""


class ParameterViews:
    """A stable, ordered list of the shards that this rank holds, and ways in and out.

    Every method but `read`, `state` and `scalars` is collective over the island. Call them between steps only.

    shards: everything held, copies included. owned: the layout of what is exchanged, counted and exported. device: of
    the engine, for collectives of the island.
    """

    def __init__(
        self, masters: Masters, layout: Layout, *, device: torch.device, tied_numel: int | None = None
    ) -> None:
        """tied_numel: elements of a tied weight's tensor parallel piece, where two stages each hold one."""
        self._masters = masters
        self._layout = layout
        self.device = device
        self._tied_numel = tied_numel
        self._held = tuple(_with_owner(h, layout) for h in masters.held)
        self._owned = [h for h in self._held if h.shard.owner]
        self.shards: tuple[Shard, ...] = tuple(h.shard for h in self._held)
        self.owned = FlatLayout.of(tuple(h.shard for h in self._owned))

    @torch.no_grad()
    def read(self, out: Tensor) -> None:
        """Copy the owned masters into a flat buffer [owned.numel] of any device; padding is not touched."""
        for held, (_, first, end) in zip(self._owned, self.owned.ranges(), strict=True):
            out[first:end].copy_(held.master)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Set the owned masters from a flat buffer [owned.numel], then every copy of them of any precision."""
        for held, (_, first, end) in zip(self._owned, self.owned.ranges(), strict=True):
            held.master.copy_(values[first:end])
        copies.spread_over_tensor(self._held, self._layout)
        if self._tied_numel is not None:
            copies.spread_tied(self._tied, self._layout, numel=self._tied_numel, device=self.device)
        self._masters.refresh()

    @torch.no_grad()
    def fill(self, value: Callable[[str, tuple[int, ...]], Tensor]) -> None:
        """Set every held master from whole logical parameters, made one at a time.

        value: a parameter's name and whole shape (vocabulary padding included) to its fp32 value on the CPU. It must
        give the same on every rank.
        """
        for held in self._held:
            held.master.copy_(cut_shard(value(held.shard.name, held.shard.shape), held.shard))
        self._masters.refresh()

    def state(self) -> dict[str, Tensor]:
        """Live fp32 views [shard.length] of all that a checkpoint holds of the inner side: `master/{name}`,
        `exp_avg/{name}`, `exp_avg_sq/{name}` for each held shard. Call `restore` after loading, not copy_ alone."""
        tensors = {}
        for held in self._held:
            tensors[f"master/{held.shard.name}"] = held.master
            tensors |= {f"{kind}/{held.shard.name}": moment for kind, moment in held.moments.items()}
        return tensors

    def scalars(self) -> dict[str, float]:
        """The inner optimizer's step counter."""
        return {"inner_optimizer_steps": float(self._masters.state.steps)}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float]) -> None:
        """Set everything from what `state` and `scalars` gave; training continues bit-equal.

        Raises:
            CheckpointError: a tensor is missing or of another size; nothing was changed.
        """
        mine = self.state()
        wrong = [k for k, t in mine.items() if k not in tensors or tensors[k].numel() != t.numel()]
        if wrong or "inner_optimizer_steps" not in scalars:
            raise CheckpointError(
                "the checkpoint does not fit this engine's shards",
                got=f"missing or of another size: {', '.join(wrong[:5]) or 'inner_optimizer_steps'}",
            )
        for key, target in mine.items():
            target.copy_(tensors[key].view(-1))
        self._masters.state.set_steps(int(scalars["inner_optimizer_steps"]))
        self._masters.refresh()

    @torch.no_grad()
    def verify_copies(self) -> None:
        """Check that low-precision copies equal the cast masters, and that copies on several ranks are bit-equal.

        Raises:
            CopiesDiffer: on every rank of the island if any copy of any rank differs.
        """
        wrong = [f"{h.shard.name} (not the cast master)" for h in self._held if not _is_cast(h)]
        pieces = {name: copies.digest(piece) for name, piece in self._masters.whole_pieces()}
        wrong += [
            f"{name} (data parallel copies)"
            for name in copies.differing(pieces, parallel_state.get_data_parallel_group())
        ]
        replicas = {h.shard.name: copies.digest(h.master) for h in self._held if copies.is_tensor_replica(h)}
        wrong += [
            f"{name} (tensor parallel copies)"
            for name in copies.differing(replicas, parallel_state.get_tensor_model_parallel_group())
        ]
        wrong += self._differing_tied()
        told: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(told, wrong)
        if any(told):
            raise CopiesDiffer(
                "; ".join(f"rank {rank}: {', '.join(names)}" for rank, names in enumerate(told) if names)
            )

    def _differing_tied(self) -> list[str]:
        if self._tied_numel is None or not (self._layout.is_first_stage or self._layout.is_last_stage):
            return []
        tied = self._tied
        part = torch.zeros((), dtype=torch.int64, device=self.device)
        if tied is not None:
            part = copies.digest(tied.master, start=tied.shard.start)
        whole = part[None].clone()
        dist.all_reduce(whole, group=parallel_state.get_data_parallel_group())
        found = copies.differing({TIED_NAME: whole[0]}, parallel_state.get_embedding_group())
        return [f"{name} (tied over stages)" for name in found]

    @property
    def _tied(self) -> HeldShard | None:
        return next((h for h in self._held if h.shard.name == TIED_NAME), None)


def _is_cast(held: HeldShard) -> bool:
    return all(torch.equal(copy, held.master.to(copy.dtype)) for copy in held.copies())


def _with_owner(held: HeldShard, layout: Layout) -> HeldShard:
    owner = held.shard.owner and not (copies.is_tensor_replica(held) and layout.tensor_index > 0)
    return replace(held, shard=replace(held.shard, owner=owner))
