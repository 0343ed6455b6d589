"""Checkpoints without training: a tiny model, random logical parameters, and their shards as ranks would hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from loco_train.checkpoint.atomic import write_file
from loco_train.checkpoint.manifest import FileRecord, Header, Manifest, RankRecord
from loco_train.checkpoint.steps import MANIFEST, island_checkpoints, point_to, step_name
from loco_train.checkpoint.write import RankContent
from loco_train.config.model import ModelConfig
from loco_train.conversion.weight_map import weights_of
from loco_train.files import hash_file
from loco_train.shards import Partition, Shard


def tiny_model(**changes: Any) -> ModelConfig:
    """Two layers, 8 heads in 2 groups, a vocabulary of 1003 padded to 1024."""
    heads = {"attention_heads": 8, "key_value_heads": 2}
    settings: dict[str, Any] = {"layers": 2, "hidden_size": 64, "ffn_hidden_size": 96, **heads, "vocab_size": 1003}
    return ModelConfig(**{**settings, **changes})


def random_parameters(model: ModelConfig, *, seed: int, std: float = 0.2) -> dict[str, Tensor]:
    """fp32 logical parameters; norm gains around 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        weight.name: torch.randn(weight.shape, generator=generator) * std + (1.0 if len(weight.shape) == 1 else 0.0)
        for weight in weights_of(model)
    }


def cut(parameters: Mapping[str, Tensor], *, tensor: int, data: int) -> list[RankContent]:
    """The content of each rank of an island (tensor fastest, then data): masters, base and momentum.

    As ZeRO 1 does, a tensor-parallel rank's pieces are packed end to end and cut into `data` ranges at arbitrary
    points. base is master + 1, momentum is master + 2, exp_avg is master + 3, so that kinds cannot be mixed up.
    """
    contents = []
    for data_index in range(data):
        for tensor_index in range(tensor):
            pieces = {n: _piece(n, value, index=tensor_index, count=tensor) for n, value in parameters.items()}
            contents.append(_zero_range(pieces, parameters, tensor=(tensor_index, tensor), data=(data_index, data)))
    return contents


def make_header(model: ModelConfig, *, step: int, tensor: int = 1, data: int = 1, **changes: Any) -> Header:
    """A header of island 0 of 1 with a small configuration."""
    config = {
        "name": "synthetic",
        "model": model.model_dump(mode="json"),
        "parallel": {"tensor": tensor, "data": data},
        "data": {"train": [{"path": "[/odd]"}]},
    }
    identity = {"run_id": "run-a", "run_name": "synthetic", "island": 0, "islands": 1}
    place = {"step": step, "round": step // 10, "steps_into_round": step % 10, "cursor": step * 4, "tokens": step * 256}
    layout = {"tensor": tensor, "pipeline": 1, "data": data}
    fields: dict[str, Any] = {**identity, **place, **layout, "config": config}
    return Header(**{**fields, **changes})


def write_by_hand(
    checkpoints: Path, header: Header, contents: list[RankContent], attachments: Mapping[str, bytes] | None = None
) -> Path:
    """Write a checkpoint of several ranks from one process, and point to it."""
    folder = checkpoints / step_name(header.step)
    folder.mkdir(parents=True)
    records = []
    for rank, content in enumerate(contents):
        path = folder / f"rank-{rank:03d}.safetensors"
        save_file(dict(content.tensors), path)
        size = path.stat().st_size
        records.append(RankRecord(path.name, hash_file(path), size, rank, tuple(content.shards), dict(content.scalars)))
    attached = []
    for name, data in (attachments or {}).items():
        write_file(folder / name, data)
        attached.append(FileRecord(name, hash_file(folder / name), len(data)))
    write_file(folder / MANIFEST, Manifest(header, tuple(records), tuple(attached)).to_text().encode())
    point_to(checkpoints, header.step)
    return folder


def write_run(
    run_dir: Path,
    model: ModelConfig,
    *,
    islands: int,
    steps: tuple[int, ...] = (10,),
    tensor: int = 2,
    data: int = 1,
    attachments: Mapping[str, bytes] | None = None,
) -> dict[tuple[int, int], dict[str, Tensor]]:
    """Checkpoints of all islands of a run; returns the logical parameters by (island, step)."""
    parameters = {}
    for island in range(islands):
        for step in steps:
            parameters[island, step] = random_parameters(model, seed=1000 * island + step)
            header = make_header(model, step=step, tensor=tensor, data=data, island=island, islands=islands)
            contents = cut(parameters[island, step], tensor=tensor, data=data)
            write_by_hand(island_checkpoints(run_dir, island), header, contents, attachments)
    return parameters


def _partition(name: str, *, index: int, count: int) -> Partition:
    if name.endswith("layernorm.weight"):
        return Partition()
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return Partition(dim=1, index=index, count=count)
    return Partition(dim=0, blocks=2 if name.endswith("linear_fc1.weight") else 1, index=index, count=count)


def _piece(name: str, value: Tensor, *, index: int, count: int) -> Tensor:
    """A rank's piece by the plain definition: each fused block is chunked by itself."""
    partition = _partition(name, index=index, count=count)
    if partition.dim is None:
        return value
    blocks = value.chunk(partition.blocks, dim=partition.dim)
    return torch.cat([b.chunk(count, dim=partition.dim)[index] for b in blocks], dim=partition.dim)


def _zero_range(
    pieces: Mapping[str, Tensor], parameters: Mapping[str, Tensor], *, tensor: tuple[int, int], data: tuple[int, int]
) -> RankContent:
    """What lies in this data rank's range of the packed pieces; `tensor` and `data` are (index, count)."""
    total = sum(piece.numel() for piece in pieces.values())
    first, stop = total * data[0] // data[1], total * (data[0] + 1) // data[1]
    shards: list[Shard] = []
    tensors: dict[str, Tensor] = {"rng": torch.arange(16, dtype=torch.uint8)}
    offset = 0
    for name, piece in pieces.items():
        start, end = max(first - offset, 0), min(stop - offset, piece.numel())
        offset += piece.numel()
        if start >= end:
            continue
        partition = _partition(name, index=tensor[0], count=tensor[1])
        owner = partition.dim is not None or tensor[0] == 0
        shards.append(Shard(name, tuple(parameters[name].shape), partition, start, end - start, owner))
        values = piece.reshape(-1)[start:end].clone()
        tensors |= {f"master/{name}": values, f"exp_avg/{name}": values + 3}
        if owner:
            tensors |= {f"base/{name}": values + 1, f"momentum/{name}": values + 2}
    return RankContent(tuple(shards), tensors, {"step": 7.0})


class MemoryParameters:
    """Logical parameters that lie in memory, for what reads them from checkpoints otherwise."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values = dict(values)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.values.items()}

    def read(self, name: str) -> Tensor:
        return self.values[name]
