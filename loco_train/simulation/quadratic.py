"""Heterogeneous quadratics: islands with minima of their own, for exact comparison with other implementations.

Island m minimises f_m(x) = 1/2 sum a_m (x - c_m)^2 by plain gradient descent in float64. Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from loco_train.blocks import block_of, select_blocks
from loco_train.config.schema import RunConfig
from loco_train.errors import ConfigError, NonFinite
from loco_train.outer import outer_method
from loco_train.shards import FlatLayout, Partition, Shard
from loco_train.simulation.lockstep import LockStep, Round, no_failures
from loco_train.simulation.matrices import WholeMatrices

# One matrix. By its name it is the block `embedding`, so that a mix2 on a subset of blocks has something to mix.
PARAMETER = "embedding.word_embeddings.weight"
Failures = Callable[[int], Collection[frozenset[int]]]


@dataclass(frozen=True)
class Quadratic:
    """curvature, center: [M, rows, columns] fp64. inner_steps: of each island. start: zero, for every island."""

    curvature: Tensor
    center: Tensor
    inner_steps: tuple[int, ...]
    inner_lr: float

    @staticmethod
    def seeded(
        *, islands: int, shape: tuple[int, int], seed: int, inner_steps: Sequence[int], inner_lr: float
    ) -> Quadratic:
        """Curvatures uniform in [0.2, 2), centers standard normal, by NumPy's PCG64 of the seed, in this order."""
        generator = np.random.Generator(np.random.PCG64(seed))
        curvature = generator.uniform(0.2, 2.0, (islands, *shape))
        center = generator.standard_normal((islands, *shape))
        return Quadratic(torch.from_numpy(curvature), torch.from_numpy(center), tuple(inner_steps), inner_lr)

    def descend(self, number: int, starts: Tensor) -> Tensor:
        """Ends [M, n] after each island's inner steps from its start [M, n]."""
        ends = starts.clone()
        for end, a, c, steps in zip(ends, self.curvature, self.center, self.inner_steps, strict=True):
            for _ in range(steps):
                end.sub_(self.inner_lr * a.flatten() * (end - c.flatten()))
        return ends

    def descend_together(self, number: int, starts: Tensor) -> Tensor:
        """The same with the islands' mean gradient in every step: data parallelism."""
        ends = starts.clone()
        for _ in range(self.inner_steps[0]):
            gradients = self.curvature.flatten(1) * (ends - self.center.flatten(1))
            ends -= self.inner_lr * gradients.mean(0)
        return ends


def run_quadratic(
    config: RunConfig,
    problem: Quadratic,
    *,
    rounds: int,
    seed: int,
    failures: Failures = no_failures,
    on_round: Callable[[], None] = lambda: None,
) -> tuple[list[Round], Tensor]:
    """Every round, and the islands' final parameters [M, n].

    Raises:
        ConfigError: mix2 is limited to blocks that the problem does not have. NonFinite: the islands diverged.
    """
    islands, numel = len(problem.center), problem.center[0].numel()
    if config.method.rule == "none":
        return _data_parallel(problem, rounds)
    _check_blocks(config)
    # No padding: the buffer is the matrix.
    shard = Shard(PARAMETER, tuple(problem.center.shape[1:]), Partition(), 0, numel)
    layout = FlatLayout((shard,), (0,), numel)
    method = outer_method(
        config.method,
        islands=islands,
        layout=layout,
        matrices=WholeMatrices(layout, config.method.aggregator.embeddings),
        layers=config.model.layers,
        tied=config.model.tied_embeddings,
    )
    simulated = LockStep.from_start(method, torch.zeros(numel, dtype=torch.float64), islands=islands, seed=seed)
    done = []
    for number in range(rounds):
        done.append(simulated.round(number, problem.descend, failed=failures(number)))
        on_round()
    return done, _finite(simulated.parameters, after=rounds - 1)


def _data_parallel(problem: Quadratic, rounds: int) -> tuple[list[Round], Tensor]:
    islands = len(problem.center)
    start, nobody = torch.zeros_like(problem.center.flatten(1)), torch.eye(islands, dtype=torch.float64)
    done = []
    for number in range(rounds):
        end = _finite(problem.descend_together(number, start), after=number)
        done.append(Round(start, end, start, start - end, nobody, nobody))
        start = end
    return done, start


def _check_blocks(config: RunConfig) -> None:
    blocks, model = config.method.mix2.blocks, config.model
    if not isinstance(blocks, tuple):
        return
    own = block_of(PARAMETER)
    if own not in select_blocks(blocks, layers=model.layers, tied=model.tied_embeddings):
        raise ConfigError(
            f"mix2 would mix nothing: the quadratic's one matrix counts as the block {own}",
            got=f"mix2.blocks: {', '.join(blocks)}",
            fix=f"name {own} among the blocks, or take --problem text",
        )


def _finite(parameters: Tensor, *, after: int) -> Tensor:
    if not bool(parameters.isfinite().all()):
        raise NonFinite(f"round {after}: NaN or infinity in the islands' parameters", fix="lower the learning rates")
    return parameters


def dump(path: Path, problem: Quadratic, rounds: Sequence[Round], final: Tensor) -> None:
    """Write everything as .npz: curvature, center, final [M, rows, columns]; start, end, base, pseudo_gradient
    [R, M, rows, columns]; mix1, mix2 [R, M, M]."""
    shape = problem.center.shape
    arrays = {"curvature": problem.curvature, "center": problem.center, "final": final.view(shape)}
    for name in ("start", "end", "base", "pseudo_gradient"):
        arrays[name] = torch.stack([getattr(each, name) for each in rounds]).view(len(rounds), *shape)
    for name in ("mix1", "mix2"):
        arrays[name] = torch.stack([getattr(each, name) for each in rounds])
    with path.open("wb") as file:  # by name, savez would add an ending
        np.savez(file, **{name: array.numpy() for name, array in arrays.items()})  # type: ignore[arg-type]
