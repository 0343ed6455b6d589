"""The weights of one mixing: symmetric, doubly stochastic, so that the mean of the islands is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loco_train.errors import ConfigError
from loco_train.graphs import reachable

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
            ConfigError: not square, negative, not symmetric, a row that does not sum to 1, not connected, or periodic.
        """
        size = len(matrix)
        if size == 0:
            raise ConfigError(f"{source} holds no weights", got="no rows", fix="write one row for each island")
        if any(len(row) != size for row in matrix):
            lengths = ", ".join(map(str, sorted({len(row) for row in matrix})))
            raise ConfigError(
                f"{source}: the weights are not a square matrix",
                got=f"rows of length {lengths}, number of rows {size}",
                fix="write one row for each island, with one weight for each",
            )
        table = torch.tensor(matrix, dtype=torch.float64)
        _require_entries(table, source)
        table = _exact(table)
        rows = [{j: float(table[i, j]) for j in range(size) if table[i, j] > 0} for i in range(size)]
        weights = Weights(tuple(rows))
        _require_agreement(weights, source)
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


def _exact(table: Tensor) -> Tensor:
    """Symmetric, with rows that sum to 1 to the last digits: a sum of 0.999999 would shrink the parameters."""
    others = (table + table.T) / 2
    others.fill_diagonal_(0)
    # Where an island keeps nothing of its own, what others weigh may exceed 1 by what a person rounded.
    others /= max(1.0, float(others.sum(1).max()))
    return others + torch.diag((1 - others.sum(1)).clamp(min=0))


def _require_agreement(weights: Weights, source: str) -> None:
    count = len(weights.rows)
    apart = sorted(set(range(count)) - reachable(0, weights.neighbours))
    if apart:
        raise ConfigError(
            f"{source}: the graph is not connected",
            got=f"no way from island 0 to {', '.join(map(str, apart))}",
            fix="give a weight to a link between the parts; without one they would never agree",
        )
    # An eigenvalue of -1 (1e-9 is above its rounding): two halves that swap their values every round.
    if count > 1 and float(torch.linalg.eigvalsh(weights.matrix)[0]) < -1 + 1e-9:
        raise ConfigError(
            f"{source}: the islands would swap their values and never agree",
            got="a graph of two halves in which no island keeps anything of its own",
            fix="give at least one island a weight on the diagonal",
        )
