"""Islands that learn to continue text: the outer methods on a real, if small, model.

Bytes of the standard library's texts; a shared start of some data parallel steps, since from fresh weights an outer
momentum hurts whatever the method; then rounds of AdamW steps on each island and outer steps by the trainer's code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from loco_train.config.schema import RunConfig, ScheduleConfig
from loco_train.data.standard_library import collect_documents
from loco_train.errors import ConfigError
from loco_train.outer import outer_method
from loco_train.outer.health import js_distance, l2_distance
from loco_train.simulation.lockstep import LockStep
from loco_train.simulation.matrices import WholeMatrices
from loco_train.simulation.stacked_llama import Shape, StackedLlama
from loco_train.training.schedule import learning_rate

_HELDOUT_FRACTION = 0.02
_HELDOUT_SEQUENCES = 256
_JS_SEQUENCES = 16


@dataclass(frozen=True)
class TextSettings:
    """inner_lr: AdamW's peak. batch: sequences of all islands together in one step. warm_up_steps: data parallel ones
    before the first round, shared by all islands. seed: of weights, order of the data and random peers."""

    rounds: int
    inner_lr: float = 4e-3
    batch: int = 32
    warm_up_steps: int = 300
    seed: int = 0
    shape: Shape = field(default_factory=Shape)


@dataclass(frozen=True)
class TextResult:
    """loss: held-out, of the consensus, nats. island_loss: mean of the islands' own. l2, js: mean distance from the
    consensus, at the last outer step's end. *_max: the largest over the rounds. sent_bytes: by all islands."""

    loss: float
    island_loss: float
    l2: float
    js: float
    l2_max: float
    js_max: float
    sent_bytes: int
    tokens: int


@dataclass
class Corpus:
    """Sequences of bytes: for training in a seeded order without repetition, and held out."""

    train: Tensor
    heldout: Tensor

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def of_standard_library(length: int) -> Corpus:
        """Windows of length + 1 bytes, [N, length + 1] uint8; whole documents are held out."""
        documents = collect_documents()
        held = max(1, int(_HELDOUT_FRACTION * len(documents)))
        return Corpus(_windows(documents[:-held], length), _windows(documents[-held:], length)[:_HELDOUT_SEQUENCES])

    def order(self, seed: int) -> Iterator[Tensor]:
        """Endless sequences, each epoch in another order."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield from self.train[torch.randperm(len(self.train), generator=generator)]


def _windows(documents: list[str], length: int) -> Tensor:
    joined = np.frombuffer("\n".join(documents).encode(), dtype=np.uint8)
    count = len(joined) // (length + 1)
    return torch.from_numpy(joined[: count * (length + 1)].reshape(count, length + 1).copy())


@dataclass
class StackedAdamW:
    """AdamW with clipping of each island's gradient, over parameters [M, n].

    decayed: [n] 1 where a parameter decays (matrices), else 0.
    """

    exp_avg: Tensor
    exp_avg_sq: Tensor
    decayed: Tensor
    steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip_grad_norm: float = 1.0
    eps: float = 1e-8
    _own_steps: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._own_steps = torch.full((len(self.exp_avg), 1), float(self.steps))

    def spread(self, islands: int) -> StackedAdamW:
        """The state of one island, for each of many."""
        first, second = (t.expand(islands, -1).clone() for t in (self.exp_avg, self.exp_avg_sq))
        return StackedAdamW(first, second, self.decayed, int(self._own_steps.max()))

    def step(self, parameters: Tensor, gradient: Tensor, *, lr: float, islands: slice | Tensor) -> None:
        """Update the rows `islands` of `parameters` in place; gradient: theirs."""
        norm = gradient.norm(dim=1, keepdim=True)
        gradient = gradient * (self.clip_grad_norm / norm.clamp(min=self.clip_grad_norm))
        self._own_steps[islands] += 1
        (one, two), steps = self.betas, self._own_steps[islands]
        first = self.exp_avg[islands] = self.exp_avg[islands].lerp(gradient, 1 - one)
        second = self.exp_avg_sq[islands] = self.exp_avg_sq[islands].lerp(gradient.square(), 1 - two)
        direction = (first / (1 - one**steps)) / ((second / (1 - two**steps)).sqrt() + self.eps)
        own = parameters[islands]
        parameters[islands] = own - lr * (direction + self.weight_decay * self.decayed * own)


@dataclass
class TextProblem:
    """One run: where it stands, and the inner steps of its islands."""

    settings: TextSettings
    corpus: Corpus
    config: RunConfig
    model: StackedLlama
    optimizer: StackedAdamW
    sequences: Iterator[Tensor]
    tokens: int = 0

    @staticmethod
    def begin(settings: TextSettings, corpus: Corpus, config: RunConfig) -> tuple[TextProblem, Tensor]:
        """The problem after the shared data parallel steps, and the start [n]."""
        layout = settings.shape.layout
        decayed = torch.zeros(layout.numel)
        for shard, first, end in layout.ranges():
            decayed[first:end] = float(len(shard.shape) > 1)
        first, second = torch.zeros(2, 1, layout.numel)
        alone = StackedAdamW(first, second, decayed)
        problem = TextProblem(
            settings, corpus, config, StackedLlama(settings.shape), alone, corpus.order(settings.seed)
        )
        start = settings.shape.initial(settings.seed)[None]
        for _ in range(settings.warm_up_steps):
            problem._step(start, slice(None), batch=settings.batch)
        problem.optimizer = alone.spread(config.islands.count)
        return problem, start[0]

    @property
    def total_tokens(self) -> int:
        share = self.settings.batch // self.config.islands.count
        rounds = self.settings.rounds * sum(self.config.steps_per_round) * share
        return (self.settings.warm_up_steps * self.settings.batch + rounds) * self.settings.shape.sequence

    def inner_steps(self, number: int, starts: Tensor) -> Tensor:
        """Ends [M, n] of a round; islands with fewer steps rest at its end."""
        ends, each = starts.clone(), torch.tensor(self.config.steps_per_round)
        for step in range(int(each.max())):
            self._step(ends, torch.nonzero(each > step)[:, 0], batch=self.settings.batch // len(ends))
        return ends

    def _step(self, parameters: Tensor, islands: slice | Tensor, *, batch: int) -> None:
        own = parameters[islands]
        taken = [next(self.sequences) for _ in range(batch * len(own))]
        tokens = torch.stack(taken).view(len(own), batch, -1).long()
        lr = learning_rate(
            ScheduleConfig(), peak=self.settings.inner_lr, tokens=self.tokens, total_tokens=self.total_tokens
        )
        _, gradient = self.model.gradients(own, tokens)
        self.optimizer.step(parameters, gradient, lr=lr, islands=islands)
        self.tokens += len(taken) * self.settings.shape.sequence

    def heldout_loss(self, parameters: Tensor) -> Tensor:
        """Of each row of parameters [M, n]."""
        held = self.corpus.heldout.long()
        return torch.cat([self.model.losses(row[None], held[None]) for row in parameters])

    @torch.no_grad()
    def js(self, parameters: Tensor) -> float:
        """Mean JS distance of the islands from their mean, on a fixed held-out batch."""
        held = self.corpus.heldout[:_JS_SEQUENCES, :-1].long()[None]
        consensus = self.model.logits(parameters.mean(0, keepdim=True), held).flatten(0, 2)
        each = [self.model.logits(row[None], held).flatten(0, 2) for row in parameters]
        return float(torch.stack([js_distance(logits, consensus) for logits in each]).mean())


def run_text(
    config: RunConfig,
    settings: TextSettings,
    corpus: Corpus,
    *,
    on_round: Callable[[float], None] = lambda loss: None,
) -> TextResult:
    """Train; `on_round` is told the consensus' held-out loss after each round.

    Raises:
        ConfigError: fewer sequences in a step than islands. NonFinite: the run diverged.
    """
    islands = config.islands.count
    if settings.batch % islands:
        raise ConfigError(
            "each island needs as many sequences of a step as every other",
            got=f"{settings.batch} sequences and {islands} islands",
            fix="set --batch to a multiple of --islands",
        )
    layout = settings.shape.layout
    method = outer_method(
        config.method,
        islands=islands,
        layout=layout,
        matrices=WholeMatrices(layout, config.method.aggregator.embeddings),
        layers=settings.shape.layers,
        tied=False,
    )
    problem, start = TextProblem.begin(settings, corpus, config)
    simulated = LockStep.from_start(method, start, islands=islands, seed=settings.seed)
    spreads: list[tuple[float, float]] = []
    loss = float("nan")
    for number in range(settings.rounds):
        simulated.round(number, problem.inner_steps)
        parameters = simulated.parameters
        loss = float(problem.heldout_loss(parameters.mean(0, keepdim=True)))
        equal = method.keeps_islands_equal
        spreads.append((0.0, 0.0) if equal else (float(l2_distance(parameters)), problem.js(parameters)))
        on_round(loss)
    return TextResult(
        loss=loss,
        island_loss=float(problem.heldout_loss(simulated.parameters).mean()),
        l2=spreads[-1][0],
        js=spreads[-1][1],
        l2_max=max(l2 for l2, _ in spreads),
        js_max=max(js for _, js in spreads),
        sent_bytes=sum(each.bytes_sent for each in simulated.communicators),
        tokens=problem.tokens,
    )
