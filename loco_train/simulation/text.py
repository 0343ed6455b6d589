"""Islands that learn to continue text: the outer methods on a real, if small, model.

Bytes of the standard library's texts; a shared start of some data parallel steps, since from fresh weights an outer
momentum hurts whatever the method; then rounds of AdamW steps on each island and outer steps by the trainer's code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from loco_train.config.schema import RunConfig, ScheduleConfig
from loco_train.data.standard_library import collect_documents
from loco_train.errors import ConfigError, NonFinite
from loco_train.outer import outer_method
from loco_train.outer.health import js_distance, l2_distance
from loco_train.simulation.lockstep import LockStep
from loco_train.simulation.matrices import WholeMatrices
from loco_train.simulation.stacked_adamw import StackedAdamW
from loco_train.simulation.stacked_llama import Shape, StackedLlama
from loco_train.training.schedule import learning_rate

_HELDOUT_FRACTION = 0.02
_HELDOUT_SEQUENCES = 256
_JS_SEQUENCES = 16


@dataclass(frozen=True)
class TextSettings:
    """inner_lr: AdamW's peak. batch: sequences of all islands together in one step. warm_up_steps: data parallel ones
    before the first round, shared by all islands. warm_up_lr: their peak, None for inner_lr. seed: of weights, order of
    the data and random peers. evaluate_every: rounds; the last one is evaluated in any case."""

    rounds: int
    inner_lr: float = 4e-3
    batch: int = 32
    warm_up_steps: int = 300
    warm_up_lr: float | None = None
    seed: int = 0
    evaluate_every: int = 1
    shape: Shape = field(default_factory=Shape)

    def evaluates_after(self, number: int) -> bool:
        """Whether the consensus is evaluated after that round."""
        return (number + 1) % self.evaluate_every == 0 or number + 1 == self.rounds


@dataclass(frozen=True)
class TextResult:
    """loss: held-out, of the consensus, nats. island_loss: mean of the islands' own. l2, js: mean distance from the
    consensus, after the last outer step. *_max: the largest over the evaluated rounds. *_before: the largest before an
    outer step, after the inner ones. sent_bytes: by all islands."""

    loss: float
    island_loss: float
    l2: float
    js: float
    l2_max: float
    js_max: float
    l2_before: float
    js_before: float
    sent_bytes: int
    tokens: int


@dataclass(eq=False)
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

    def order(self, seed: int, *, skipped: int = 0) -> Iterator[Tensor]:
        """Endless sequences, each epoch in another order, from the one after `skipped` on."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            chosen = torch.randperm(len(self.train), generator=generator)[skipped:]
            skipped = max(0, skipped - len(self.train))
            yield from (self.train[index] for index in chosen)


def _windows(documents: list[str], length: int) -> Tensor:
    joined = np.frombuffer("\n".join(documents).encode(), dtype=np.uint8)
    count = len(joined) // (length + 1)
    return torch.from_numpy(joined[: count * (length + 1)].reshape(count, length + 1).copy())


@dataclass(frozen=True)
class WarmStart:
    """Where the shared data parallel steps end: parameters [1, n], the state of AdamW, sequences taken so far."""

    parameters: Tensor
    optimizer: StackedAdamW
    sequences: int


@dataclass
class TextProblem:
    """One run: where it stands, and the inner steps of its islands. peak: of the learning rate."""

    settings: TextSettings
    corpus: Corpus
    total_tokens: int
    model: StackedLlama
    optimizer: StackedAdamW
    sequences: Iterator[Tensor]
    peak: float
    tokens: int = 0

    @staticmethod
    def after(start: WarmStart, settings: TextSettings, corpus: Corpus, config: RunConfig) -> TextProblem:
        """The problem of many islands that set out from `start`."""
        return TextProblem(
            settings,
            corpus,
            total_tokens(settings, config),
            StackedLlama(settings.shape),
            start.optimizer.spread(config.islands.count),
            corpus.order(settings.seed, skipped=start.sequences),
            settings.inner_lr,
            start.sequences * settings.shape.sequence,
        )

    def inner_steps(self, starts: Tensor, each: Tensor) -> Tensor:
        """Ends [M, n] of a round of each [M] steps; islands with fewer steps rest at its end."""
        ends = starts.clone()
        for step in range(int(each.max())):
            self.step(ends, torch.nonzero(each > step)[:, 0], batch=self.settings.batch // len(ends))
        return ends

    def step(self, parameters: Tensor, islands: slice | Tensor, *, batch: int) -> None:
        """One step of AdamW for the rows `islands` of parameters [M, n], in place; batch: sequences of each."""
        own = parameters[islands]
        taken = [next(self.sequences) for _ in range(batch * len(own))]
        tokens = torch.stack(taken).view(len(own), batch, -1).long()
        lr = learning_rate(ScheduleConfig(), peak=self.peak, tokens=self.tokens, total_tokens=self.total_tokens)
        _, gradient = self.model.gradients(own, tokens)
        self.optimizer.step(parameters, gradient, lr=lr, islands=islands)
        self.tokens += len(taken) * self.settings.shape.sequence

    def heldout_loss(self, parameters: Tensor) -> Tensor:
        """Of each row of parameters [M, n]."""
        held = self.corpus.heldout.long()
        return torch.cat([self.model.losses(row[None], held[None]) for row in parameters])

    def consensus_loss(self, parameters: Tensor, number: int) -> float:
        """Held-out loss of the mean of parameters [M, n], after round `number`.

        Raises:
            NonFinite: it is no number.
        """
        loss = float(self.heldout_loss(parameters.mean(0, keepdim=True)))
        if not math.isfinite(loss):
            raise NonFinite(f"round {number}: the held-out loss of the consensus is {loss}")
        return loss

    @torch.no_grad()
    def js(self, parameters: Tensor) -> float:
        """Mean JS distance of the islands from their mean, on a fixed held-out batch."""
        held = self.corpus.heldout[:_JS_SEQUENCES, :-1].long()[None]
        consensus = self.model.logits(parameters.mean(0, keepdim=True), held).flatten(0, 2)
        each = [self.model.logits(row[None], held).flatten(0, 2) for row in parameters]
        return float(torch.stack([js_distance(logits, consensus) for logits in each]).mean())

    def spread(self, parameters: Tensor) -> tuple[float, float]:
        """L2 and JS distance of the islands from their mean."""
        return float(l2_distance(parameters)), self.js(parameters)


def total_tokens(settings: TextSettings, config: RunConfig) -> int:
    """Of the shared steps and all rounds."""
    share = settings.batch // config.islands.count
    rounds = settings.rounds * sum(config.steps_per_round) * share
    return (settings.warm_up_steps * settings.batch + rounds) * settings.shape.sequence


def warm_start(settings: TextSettings, corpus: Corpus, *, total_tokens: int) -> WarmStart:
    """The shared data parallel steps; total_tokens: of the run, for the learning rate's schedule."""
    layout = settings.shape.layout
    decayed = torch.zeros(layout.numel)
    for shard, first, end in layout.ranges():
        decayed[first:end] = float(len(shard.shape) > 1)
    first, second = torch.zeros(2, 1, layout.numel)
    alone = StackedAdamW(first, second, decayed)
    peak = settings.inner_lr if settings.warm_up_lr is None else settings.warm_up_lr
    model, order = StackedLlama(settings.shape), corpus.order(settings.seed)
    problem = TextProblem(settings, corpus, total_tokens, model, alone, order, peak)
    parameters = settings.shape.initial(settings.seed)[None]
    for _ in range(settings.warm_up_steps):
        problem.step(parameters, slice(None), batch=settings.batch)
    return WarmStart(parameters, alone, settings.warm_up_steps * settings.batch)


def run_text(
    config: RunConfig,
    settings: TextSettings,
    corpus: Corpus,
    *,
    islands: int | None = None,
    start: WarmStart | None = None,
    on_round: Callable[[float], None] = lambda loss: None,
) -> TextResult:
    """Train; `on_round` is told the consensus' held-out loss after each evaluated round.

    islands: over how many a data parallel step is spread, which is one island to the settings; theirs where None.
    start: what `warm_start` gives for these settings, where it is at hand.

    Raises:
        ConfigError: fewer sequences in a step than islands. NonFinite: the run diverged.
    """
    islands = islands or config.islands.count
    if settings.batch % islands:
        raise ConfigError(
            "each island needs as many sequences of a step as every other",
            got=f"{settings.batch} sequences and {islands} islands",
            fix="set --batch to a multiple of --islands",
        )
    if start is None:
        start = warm_start(settings, corpus, total_tokens=total_tokens(settings, config))
    problem = TextProblem.after(start, settings, corpus, config)
    if config.method.rule == "none":
        return _data_parallel(config, problem, start, islands=islands, on_round=on_round)
    layout = settings.shape.layout
    method = outer_method(
        config.method,
        islands=islands,
        layout=layout,
        matrices=WholeMatrices(layout, config.method.aggregator.embeddings),
        layers=settings.shape.layers,
        tied=False,
    )
    each = torch.tensor(config.steps_per_round)
    simulated = LockStep.from_start(method, start.parameters[0], islands=islands, seed=settings.seed)
    before, after = [], []
    loss = float("nan")
    for number in range(settings.rounds):
        record = simulated.round(number, lambda _, starts: problem.inner_steps(starts, each))
        if settings.evaluates_after(number):
            parameters = simulated.parameters
            loss = problem.consensus_loss(parameters, number)
            before.append(problem.spread(record.end))
            after.append((0.0, 0.0) if method.keeps_islands_equal else problem.spread(parameters))
            on_round(loss)
    return TextResult(
        loss=loss,
        island_loss=float(problem.heldout_loss(simulated.parameters).mean()),
        l2=after[-1][0],
        js=after[-1][1],
        l2_max=max(l2 for l2, _ in after),
        js_max=max(js for _, js in after),
        l2_before=max(l2 for l2, _ in before),
        js_before=max(js for _, js in before),
        sent_bytes=sum(communicator.bytes_sent for communicator in simulated.communicators),
        tokens=problem.tokens,
    )


def _data_parallel(
    config: RunConfig, problem: TextProblem, start: WarmStart, *, islands: int, on_round: Callable[[float], None]
) -> TextResult:
    """The islands average their gradients in every step, so that one model stands for all of them."""
    parameters, each = start.parameters, torch.tensor(config.steps_per_round)
    settings, loss = problem.settings, float("nan")
    for number in range(settings.rounds):
        parameters = problem.inner_steps(parameters, each)
        if settings.evaluates_after(number):
            loss = problem.consensus_loss(parameters, number)
            on_round(loss)
    # Of each step, what a ring all-reduce of the gradient in fp32 sends.
    steps = settings.rounds * int(each.sum())
    sent = steps * islands * (2 * (islands - 1) * parameters.nbytes // islands)
    same = dict.fromkeys(("l2", "js", "l2_max", "js_max", "l2_before", "js_before"), 0.0)
    return TextResult(loss=loss, island_loss=loss, **same, sent_bytes=sent, tokens=problem.tokens)
