"""What a checkpoint holds, parameter by parameter: for people who inspect it, and for comparing two by eye."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.checkpoint.assemble import IslandParameters, LogicalParameters
from loco_train.checkpoint.consensus import ConsensusParameters

_DIGEST_CHARACTERS = 12  # 48 bits: no two of a thousand parameters collide by chance, and it fits a table


@dataclass(frozen=True)
class ParameterSummary:
    """One logical parameter at the consensus (or of the one island that was asked for).

    norm: L2 norm, vocabulary padding included. distance: root of the mean squared L2 distance of the islands from it.
    digest: begin of the sha256 of its fp32 bytes. island_digests: the same of each island's.
    """

    name: str
    shape: tuple[int, ...]
    norm: float
    distance: float
    digest: str
    island_digests: tuple[str, ...]


def summarize_parameters(
    islands: Sequence[LogicalParameters], *, on_parameter: Callable[[str], None] | None = None
) -> list[ParameterSummary]:
    """Each parameter in model order; reads one at a time from every island."""
    consensus = ConsensusParameters(islands)
    summaries = []
    for name, shape in consensus.shapes.items():
        values = [island.read(name) for island in islands]
        mean = consensus.mean(values)
        squares = [(value - mean).square().sum().item() for value in values]
        summaries.append(
            ParameterSummary(
                name=name,
                shape=shape,
                norm=mean.norm().item(),
                distance=(sum(squares) / len(squares)) ** 0.5,
                digest=tensor_digest(mean.float()),
                island_digests=tuple(tensor_digest(value) for value in values),
            )
        )
        if on_parameter:
            on_parameter(name)
    return summaries


def tensor_digest(tensor: Tensor) -> str:
    """Begin of the sha256 of a CPU tensor's bytes, in the machine's byte order."""
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:_DIGEST_CHARACTERS]


def same_parameters(one: IslandParameters, other: IslandParameters) -> bool:
    """Whether two islands hold the same parameters to the last bit."""
    return all(torch.equal(one.read(name), other.read(name)) for name in one.shapes)
