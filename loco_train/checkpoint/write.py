"""Saving: every rank writes its own file, rank 0 the manifest; nothing becomes visible before all of it is on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from loco_train.checkpoint.atomic import write_file
from loco_train.checkpoint.collective import island_rank, on_every_rank
from loco_train.checkpoint.manifest import FileRecord, Header, Manifest, RankRecord, header_differences
from loco_train.checkpoint.retention import set_aside
from loco_train.checkpoint.steps import MANIFEST, point_to, step_name
from loco_train.checkpoint.tensors import save_tensors
from loco_train.errors import CheckpointError
from loco_train.files import flush_to_disk, hash_file, temporary_sibling
from loco_train.shards import Shard
from loco_train.units import format_bytes

# Beside the tensors' own bytes: their entries in the file's header and in the manifest (under 500 bytes each), and
# the configuration in the manifest.
_OVERHEAD_BYTES_PER_TENSOR = 512
_OVERHEAD_BYTES_PER_RANK = 2**15
# Keys that belong to the rank, not to a parameter.
_RANK_KEYS = frozenset({"rng"})
_OWNED_KINDS = frozenset({"base", "momentum", "sent"})


@dataclass(frozen=True)
class RankContent:
    """What one rank puts into a checkpoint.

    shards: everything that the rank holds.
    tensors: 1-D tensors on any device: `master/{name}` and other `{kind}/{name}` of a held shard's length,
        `base/{name}` and other outer state (`momentum`, `sent`) of the owned shards, and `rng`.
    scalars: step counters and the like.
    """

    shards: Sequence[Shard]
    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, float]

    def check(self) -> None:
        """Raise CheckpointError unless each tensor belongs to a shard and each shard has its master."""
        lengths = {shard.name: shard.length for shard in self.shards}
        if len(lengths) != len(self.shards):
            raise CheckpointError("a rank holds two shards of the same parameter")
        owned = {shard.name for shard in self.shards if shard.owner}
        for key, tensor in self.tensors.items():
            if key not in _RANK_KEYS:
                _check_key(key, tensor, lengths=lengths, owned=owned)
        missing = [f"master/{name}" for name in lengths if f"master/{name}" not in self.tensors]
        for kind in _OWNED_KINDS:
            present = {name for name in owned if f"{kind}/{name}" in self.tensors}
            missing += [f"{kind}/{name}" for name in sorted(owned - present)] if present else []
        if missing:
            raise CheckpointError(f"{len(missing)} tensors are missing, the first of them {', '.join(missing[:3])}")

    @property
    def size_bytes(self) -> int:
        """Bytes that the rank's file and its entry in the manifest take, estimated from above."""
        tensors = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())
        return tensors + len(self.tensors) * _OVERHEAD_BYTES_PER_TENSOR + _OVERHEAD_BYTES_PER_RANK


def save_checkpoint(
    checkpoints: Path, *, header: Header, content: RankContent, attachments: Mapping[str, bytes] | None = None
) -> Path:
    """Save one checkpoint of an island; collective over the default group.

    Args:
        checkpoints: the island's folder of checkpoints, the same on all ranks and on a file system they share.
        header: the same on all ranks.
        content: this rank's tensors.
        attachments: files that travel along (tokenizer.model, config.yaml); rank 0's are written.

    Returns:
        The folder of the checkpoint. A checkpoint of the same step that is there already is replaced.

    Raises:
        CheckpointError: on all ranks, if any failed. The temporary folder is gone, the last checkpoint and the
            pointer are as they were.
    """
    target = checkpoints / step_name(header.step)
    doing = f"saving {target}"
    attached_bytes = sum(map(len, (attachments or {}).values()))
    plans = on_every_rank(lambda: _prepare(target, header, content, attached_bytes), doing=doing)
    temporary = target.with_name(plans[0].temporary)
    try:
        on_every_rank(lambda: _begin(temporary, plans), doing=doing)
        records = on_every_rank(lambda: _write_rank(temporary, content), doing=doing)
        on_every_rank(lambda: _finish(temporary, target, header, records, attachments or {}), doing=doing)
    except BaseException:
        if island_rank() == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


@dataclass(frozen=True)
class _Plan:
    """What a rank is about to write, and where; of the names that the ranks made up, rank 0's counts."""

    temporary: str
    header: Header
    size_bytes: int


def _check_key(key: str, tensor: Tensor, *, lengths: Mapping[str, int], owned: set[str]) -> None:
    kind, _, name = key.partition("/")
    if name not in lengths or (kind in _OWNED_KINDS and name not in owned):
        raise CheckpointError(
            f"tensor {key} belongs to no shard that this rank {'owns' if name in lengths else 'holds'}"
        )
    if tensor.dim() != 1 or tensor.numel() != lengths[name]:
        raise CheckpointError(
            f"tensor {key} does not fit its shard", got=f"shape {tuple(tensor.shape)}", allowed=f"({lengths[name]},)"
        )


def _prepare(target: Path, header: Header, content: RankContent, attached_bytes: int) -> _Plan:
    content.check()
    size_bytes = content.size_bytes + (attached_bytes if island_rank() == 0 else 0)
    return _Plan(temporary_sibling(target).name, header, size_bytes)


def _begin(temporary: Path, plans: Sequence[_Plan]) -> None:
    header = plans[0].header
    for rank, plan in enumerate(plans):
        if differing := header_differences(header, plan.header):
            raise CheckpointError(
                f"ranks 0 and {rank} are not at the same place",
                got=", ".join(f"{n}: {getattr(header, n)} and {getattr(plan.header, n)}" for n in differing),
            )
    if header.ranks != len(plans):
        raise CheckpointError(
            "the layout in the header does not fit the island", got=header.ranks, allowed=f"{len(plans)} ranks"
        )
    if island_rank() == 0:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        _check_space(temporary.parent, sum(plan.size_bytes for plan in plans))
        temporary.mkdir()


def _check_space(checkpoints: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(checkpoints).free
    if free_bytes < needed_bytes:
        raise CheckpointError(
            f"no space for a checkpoint in {checkpoints}",
            got=f"{format_bytes(free_bytes)} free",
            allowed=f"at least {format_bytes(needed_bytes)}",
            fix="free space there, lower checkpoint.keep_last, or point run_dir to a larger file system",
        )


def _write_rank(temporary: Path, content: RankContent) -> RankRecord:
    rank = island_rank()
    if not temporary.is_dir():
        raise CheckpointError(
            f"rank {rank} does not see {temporary}, which rank 0 made",
            fix="run_dir must be on a file system that all nodes of an island share",
        )
    path = temporary / f"rank-{rank:03d}.safetensors"
    save_tensors({key: tensor.detach() for key, tensor in content.tensors.items()}, path)
    flush_to_disk(path)
    return RankRecord(
        file=path.name,
        sha256=hash_file(path),
        bytes=path.stat().st_size,
        rank=rank,
        shards=tuple(content.shards),
        scalars=dict(content.scalars),
    )


def _finish(
    temporary: Path, target: Path, header: Header, records: Sequence[RankRecord], attachments: Mapping[str, bytes]
) -> None:
    if island_rank() != 0:
        return
    attached = tuple(_attach(temporary / name, data) for name, data in attachments.items())
    write_file(temporary / MANIFEST, Manifest(header, tuple(records), attached).to_text().encode())
    flush_to_disk(temporary)
    with set_aside(target):
        os.rename(temporary, target)
        flush_to_disk(target.parent)
    point_to(target.parent, header.step)


def _attach(path: Path, data: bytes) -> FileRecord:
    write_file(path, data)
    return FileRecord(path.name, hash_file(path), len(data))
