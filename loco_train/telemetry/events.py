"""Typed events of a run. Names carry units; `type` in a file is the class name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Base of all events: where the run stands.

    step: inner steps done by this island. round: outer rounds done.
    """

    step: int
    round: int


@dataclass(frozen=True)
class RunStarted(Event):
    """parameters: of the model, vocabulary padding excluded. resumed_from: a checkpoint's folder, or None."""

    run_name: str
    run_id: str
    island: int
    islands: int
    ranks: int
    parameters: int
    resumed_from: str | None = None


@dataclass(frozen=True)
class StepDone(Event):
    """loss: nats, mean over the island's batch. tokens: consumed by all islands so far. tokens_per_second: this
    island's. grad_norm: before clipping."""

    loss: float
    lr: float
    grad_norm: float
    tokens: int
    tokens_per_second: float
    step_seconds: float


@dataclass(frozen=True)
class RoundDone(Event):
    """bytes_sent: payload that this island sent to others in the round, over all its ranks. socket_bytes_sent: what
    the kernel sent for it, where it tells. spread_l2: distance of this island from the mean before the outer step,
    where the method gives a mean."""

    compute_seconds: float
    wait_seconds: float
    outer_seconds: float
    bytes_sent: int
    socket_bytes_sent: int | None
    pseudo_gradient_norm: float
    spread_l2: float | None


@dataclass(frozen=True)
class EvaluationDone(Event):
    """scope: consensus (the mean of the islands) or island (its own model before the outer step). loss: nats.

    distance_l2: of this island from the consensus; bytes_sent: by this island to get it. Both 0 where the method keeps
    the islands equal."""

    scope: str
    loss: float
    perplexity: float
    seconds: float
    distance_l2: float = 0.0
    bytes_sent: int = 0


@dataclass(frozen=True)
class HealthMeasured(Event):
    """How far the islands are from their mean, the mean over the islands, before the outer step of the round.

    js: of the next token's distribution, in [0, 1]. l2: of the parameters; l2_by_block: of each block. js_by_block:
    what each block's disagreement alone causes; empty where it is not measured. js_here, l2_here: this island's own.
    bytes_sent: by this island for the measurement. seconds: of it, with the wait for the
    other islands."""

    js: float
    l2: float
    l2_by_block: dict[str, float]
    js_by_block: dict[str, float]
    js_here: float
    l2_here: float
    seconds: float
    bytes_sent: int


@dataclass(frozen=True)
class Mix2Changed(Event):
    """From the outer step of this round on. wide: whether mix2 is widened. peers, blocks: what it is now; blocks None:
    the whole model. js: the islands' mean distance that decided; usual_js: what it was compared with."""

    wide: bool
    peers: str
    blocks: list[str] | None
    js: float
    usual_js: float | None


@dataclass(frozen=True)
class BlocksMeasured(Event):
    """What mix2 mixes from the outer step of this round on: `chosen`, out of what was measured before it.

    js_by_block: as in HealthMeasured, in [0, 1], the mean over the islands. bytes_by_block: what each sends to one
    peer. seconds, bytes_sent: as in HealthMeasured."""

    js_by_block: dict[str, float]
    bytes_by_block: dict[str, int]
    chosen: list[str]
    seconds: float
    bytes_sent: int


@dataclass(frozen=True)
class CheckpointSaved(Event):
    path: str
    seconds: float
    bytes: int


@dataclass(frozen=True)
class RunFailed(Event):
    """error: the class. exit_code: with which the program ends."""

    error: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class RunEnded(Event):
    """wall_seconds: of this process, from the first inner step to the end. compute_seconds: of it in inner steps."""

    wall_seconds: float
    compute_seconds: float
    compute_utilization: float
    tokens: int


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        RunStarted,
        StepDone,
        RoundDone,
        EvaluationDone,
        HealthMeasured,
        Mix2Changed,
        BlocksMeasured,
        CheckpointSaved,
        RunFailed,
        RunEnded,
    )
}
