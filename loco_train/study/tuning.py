"""Tuning of a point: from the method's defaults along one axis at a time, so many runs and no more."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from loco_train.study.rows import Row, Trial, rounded
from loco_train.study.settings import Axis, Part, Point, StudyConfig, Tuning
from loco_train.study.trials import method_settings, trial

Values = dict[Axis, float]


@dataclass(frozen=True)
class Search:
    """A point that is tuned: its first run, with the method's defaults, and the axes along which it is searched."""

    first: Trial
    axes: tuple[Axis, ...]
    tuning: Tuning

    def found(self, rows: Sequence[Row]) -> Row | None:
        """The run with the lowest loss among the rows of this search; None before the first."""
        return min((r for r in rows if self.covers(r.trial)), key=lambda r: r.comparable_loss, default=None)

    def covers(self, other: Trial) -> bool:
        first = self.first
        return replace(other, inner_lr=first.inner_lr, outer_lr=first.outer_lr, momentum=first.momentum) == first


class OutOfRuns(Exception):
    """The search has done as many runs as it may."""


def searches(study: StudyConfig) -> list[Search]:
    """Every point that is tuned, once, in the order of the parts."""
    found: dict[Trial, Search] = {}
    for part in study.parts.values():
        for point in part.points:
            if part.tuned and tuned_as(point) == point:
                search = _search(study, part, point)
                found.setdefault(search.first, search)
    return list(found.values())


def tuned_as(point: Point) -> Point:
    """The point whose tuned values a point takes."""
    return Point(
        variant=point.tuned_variant or point.variant,
        islands=point.tuned_islands or point.islands,
        inner_steps=point.tuned_inner_steps or point.inner_steps,
    )


def search_for(study: StudyConfig, part: Part, point: Point) -> Search:
    """The search that a point's values come from: of the same part, else of another part with the same batch."""
    wanted = tuned_as(point)
    for candidate in (part, *study.parts.values()):
        if candidate.tuned and candidate.problem.batch == part.problem.batch and wanted in candidate.points:
            return _search(study, candidate, wanted)
    raise LookupError(f"{wanted.variant} on {wanted.islands} islands is tuned nowhere")


def _search(study: StudyConfig, part: Part, point: Point) -> Search:
    tuning = study.tuning
    first = trial(study, point, part.problem, seed=tuning.seed, inner_lr=tuning.inner_lr, outer_lr=1.0, momentum=0.0)
    config = method_settings(first, defaults=True).method
    lr, momentum = config.outer_for(point.islands)
    kept = study.variants[point.variant].tuned
    axes = tuple(axis for axis in kept if axis != "momentum" or config.outer.kind != "sgd")
    return Search(replace(first, outer_lr=lr, momentum=momentum), axes, tuning)


def coordinate_search(search: Search, evaluate: Callable[[Trial], float]) -> None:
    """Move along an axis while that lowers the loss, then along the next one; over again until nothing helps.

    evaluate is asked at most `tuning.runs` times, never twice for the same trial.
    """
    losses: dict[Trial, float] = {}

    def loss(tried: Trial) -> float:
        if tried not in losses:
            if len(losses) == search.tuning.runs:
                raise OutOfRuns
            losses[tried] = evaluate(tried)
        return losses[tried]

    with contextlib.suppress(OutOfRuns):
        _descend(search, loss)


def _descend(search: Search, loss: Callable[[Trial], float]) -> None:
    best, before = search.first, None
    loss(best)
    while best != before:
        before = best
        for axis in search.axes:
            best = _along(search, axis, best, loss)


def _along(search: Search, axis: Axis, best: Trial, loss: Callable[[Trial], float]) -> Trial:
    start = best
    for direction in (1, -1):
        while (following := neighbour(search.tuning, axis, best, direction)) and loss(following) < loss(best):
            best = following
        if best != start:
            break  # what lies the other way was left behind
    return best


def neighbour(tuning: Tuning, axis: Axis, trial: Trial, direction: int) -> Trial | None:
    """The trial one step along the axis; None at its end."""
    if axis == "inner_lr":
        return replace(trial, inner_lr=rounded(trial.inner_lr * tuning.inner_factor**direction))
    if axis == "outer_lr":
        return replace(trial, outer_lr=rounded(trial.outer_lr * tuning.outer_factor**direction))
    beyond = [m for m in tuning.momentum if (m - trial.momentum) * direction > 1e-9]
    return replace(trial, momentum=min(beyond, key=lambda m: abs(m - trial.momentum))) if beyond else None


def is_finished(search: Search, rows: Sequence[Row]) -> bool:
    """Whether the search would ask for no further run."""
    known = losses_of(rows)
    missing: list[Trial] = []

    def evaluate(tried: Trial) -> float:
        if tried not in known:
            missing.append(tried)
            raise OutOfRuns
        return known[tried]

    coordinate_search(search, evaluate)
    return not missing


def losses_of(rows: Sequence[Row]) -> Mapping[Trial, float]:
    """Loss by trial; infinite where it diverged."""
    return {row.trial: row.comparable_loss for row in rows if not math.isnan(row.comparable_loss)}
