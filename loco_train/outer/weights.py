"""The weights of one mixing: symmetric, doubly stochastic, so that the mean of the islands is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.errors import ConfigError

# Rows of a matrix in a file are written with a few digits: 0.333333 sums to 0.999999.
_FILE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Weights:
    """rows[i][j] > 0: the weight of island j's tensor in island i's mix."""

    rows: tuple[Mapping[int, float], ...]

    @staticmethod
    def identity(islands: int) -> Weights:
        return Weights(tuple({i: 1.0} for i in range(islands)))

    @staticmethod
    def mean(islands: int) -> Weights:
        return Weights(tuple(dict.fromkeys(range(islands), 1 / islands) for _ in range(islands)))

    @staticmethod
    def around(neighbours: Mapping[int, Collection[int]], self_weight: float | None) -> Weights:
        """Equal weights for the neighbours, what remains for the island; None: the island counts as one of them.

        neighbours: symmetric, and as many for every island that has any.
        """
        rows = []
        for island in range(len(neighbours)):
            others = sorted(set(neighbours[island]) - {island})
            row = {island: 1.0}
            if others:
                own = 1 / (len(others) + 1) if self_weight is None else self_weight
                share = own if self_weight is None else (1 - own) / len(others)
                row = {island: own} | dict.fromkeys(others, share)
            rows.append(dict(sorted(row.items())))
        return Weights(tuple(rows))

    @staticmethod
    def checked(matrix: Sequence[Sequence[float]], *, source: str) -> Weights:
        """A matrix that a person wrote.

        Raises:
            ConfigError: not square, negative, not symmetric, a row that does not sum to 1, or not connected.
        """
        size = len(matrix)
        if size == 0 or any(len(row) != size for row in matrix):
            raise ConfigError(f"{source}: the weights are not a square matrix", got=f"{size} rows of other lengths")
        table = torch.tensor(matrix, dtype=torch.float64).reshape(size, size)
        _require_entries(table, source)
        # Exactly symmetric, and rows that sum to 1 to the last digits: a sum of 0.999999 would shrink the parameters.
        table = (table + table.T) / 2
        table.diagonal().add_(1 - table.sum(1))
        rows = [{j: float(table[i, j]) for j in range(size) if table[i, j] > 0} for i in range(size)]
        weights = Weights(tuple(rows))
        reached = weights.reachable_from(0)
        if len(reached) < size:
            apart = sorted(set(range(size)) - reached)
            raise ConfigError(
                f"{source}: the graph is not connected",
                got=f"no way from island 0 to {', '.join(map(str, apart))}",
                fix="give a weight to a link between the parts; without one they would never agree",
            )
        return weights

    @property
    def matrix(self) -> Tensor:
        """[M, M] fp64."""
        table = torch.zeros(len(self.rows), len(self.rows), dtype=torch.float64)
        for island, row in enumerate(self.rows):
            table[island, list(row)] = torch.tensor(list(row.values()), dtype=torch.float64)
        return table

    @property
    def is_mean(self) -> bool:
        return self == Weights.mean(len(self.rows))

    def neighbours(self, island: int) -> tuple[int, ...]:
        return tuple(other for other in self.rows[island] if other != island)

    def without(self, failed: Collection[frozenset[int]]) -> Weights:
        """The weights when these pairs could not exchange: each side keeps its own in place of the other's.

        A mean over all that cannot be had leaves every island with its own: one that took a part of it would shift
        the mean.
        """
        lost = [pair for pair in failed if any(j in self.rows[i] for i, j in [tuple(pair)])]
        if not lost:
            return self
        if self.is_mean and len(self.rows) > 2:
            return Weights.identity(len(self.rows))
        rows = [dict(row) for row in self.rows]
        for pair in lost:
            for island, other in (tuple(pair), tuple(pair)[::-1]):
                rows[island][island] = rows[island].get(island, 0.0) + rows[island].pop(other)
        return Weights(tuple(dict(sorted(row.items())) for row in rows))

    def reachable_from(self, island: int) -> set[int]:
        reached, waiting = {island}, [island]
        while waiting:
            new = set(self.neighbours(waiting.pop())) - reached
            reached |= new
            waiting += new
        return reached


def _require_entries(table: Tensor, source: str) -> None:
    for wrong, what in (
        (table < 0, "weights must not be negative"),
        (~table.isfinite(), "weights must be numbers"),
        ((table - table.T).abs() > _FILE_TOLERANCE, "the weights must be symmetric"),
    ):
        if wrong.any():
            i, j = (int(x) for x in wrong.nonzero()[0])
            got = f"{float(table[i, j]):g} in row {i}, column {j}, and {float(table[j, i]):g} across"
            raise ConfigError(f"{source}: {what}", got=got)
    sums = table.sum(1)
    wrong_rows = ((sums - 1).abs() > len(table) * _FILE_TOLERANCE).nonzero()
    if len(wrong_rows):
        row = int(wrong_rows[0])
        raise ConfigError(
            f"{source}: each row must sum to 1", got=f"row {row} sums to {float(sums[row]):g}",
            fix="the diagonal is what an island keeps of its own: 1 - the sum of the others",
        )  # fmt: skip
