"""The consensus: the mean of the islands' parameters, which is what is evaluated and exported; and their spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.checkpoint.assemble import LogicalParameters
from loco_train.errors import CheckpointError


class ConsensusParameters:
    """Mean over islands, one parameter at a time; accumulated in fp64, so that equal islands give exactly themselves.

    Raises:
        CheckpointError: the islands' parameters differ in names or shapes.
    """

    def __init__(self, islands: Sequence[LogicalParameters]) -> None:
        self.islands = tuple(islands)
        self._shapes = islands[0].shapes
        for index, island in enumerate(islands[1:], start=1):
            names = sorted(n for n in {**self._shapes, **island.shapes} if self._shapes.get(n) != island.shapes.get(n))
            if names:
                raise CheckpointError(
                    f"islands 0 and {index} have different parameters",
                    got=", ".join(f"{n}: {self._shapes.get(n)} and {island.shapes.get(n)}" for n in names[:5]),
                )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        """The mean of the islands' parameter `name`, fp32."""
        return self.mean([island.read(name) for island in self.islands]).float()

    def mean(self, values: Sequence[Tensor]) -> Tensor:
        """Mean of the islands' values of one parameter, fp64."""
        total = torch.zeros(values[0].shape, dtype=torch.float64)
        for value in values:
            total += value
        return total / len(values)

    def spread(self, *, on_parameter: Callable[[str], None] | None = None) -> Spread:
        """How far the islands are from their mean, over all parameters; reads each once."""
        squares = [0.0] * len(self.islands)
        mean_square = 0.0
        for name in self.shapes:
            values = [island.read(name) for island in self.islands]
            mean = self.mean(values)
            mean_square += mean.square().sum().item()
            for index, value in enumerate(values):
                squares[index] += (value - mean).square().sum().item()
            if on_parameter:
                on_parameter(name)
        return Spread(tuple(math.sqrt(s) for s in squares), math.sqrt(mean_square))


@dataclass(frozen=True)
class Spread:
    """L2 distance of each island from the consensus, and the L2 norm of the consensus (vocabulary padding included)."""

    distances: tuple[float, ...]
    norm: float

    @property
    def root_mean_square(self) -> float:
        """Root of the mean of the squared distances over islands."""
        return math.sqrt(sum(d * d for d in self.distances) / len(self.distances))

    @property
    def relative(self) -> float:
        """`root_mean_square` as a share of the norm of the consensus; 0 where both are 0."""
        return self.root_mean_square / self.norm if self.norm else 0.0
