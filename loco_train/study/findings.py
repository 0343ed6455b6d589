"""What the rows of a study say: means and spreads over seeds, differences seed by seed, and whether claims hold."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loco_train.study.rows import Row
from loco_train.study.settings import Growth, Order, Part, Point, StudyConfig
from loco_train.study.trials import tuned_trial
from loco_train.study.tuning import search_for


@dataclass(frozen=True)
class Spread:
    """Of values over seeds; deviation: of the sample, 0 for one seed. mean: infinite where a run diverged."""

    mean: float
    deviation: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if any(math.isinf(value) or math.isnan(value) for value in values):
            return Spread(math.inf, 0.0, len(values))
        return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


@dataclass(frozen=True)
class Found:
    """A point's final rows by seed, with the tuned values of now."""

    point: Point
    rows: Mapping[int, Row]

    def values(self, field: str) -> dict[int, float]:
        """By seed; infinite where the run diverged."""
        each = {seed: getattr(row, field) for seed, row in self.rows.items()}
        return {seed: math.inf if value is None else float(value) for seed, value in each.items()}

    def spread(self, field: str) -> Spread:
        return Spread.of(list(self.values(field).values()))


def differences(one: Found, other: Found, field: str = "loss") -> list[float]:
    """one - other for every seed that both have."""
    ours, theirs = one.values(field), other.values(field)
    # Two that diverged do not differ, as far as anyone can say.
    return [0.0 if ours[s] == theirs[s] else ours[s] - theirs[s] for s in sorted(ours.keys() & theirs.keys())]


def find(study: StudyConfig, part: Part, *, tuning: Sequence[Row], final: Sequence[Row]) -> list[Found]:
    """Every point of a part that has rows, by islands and inner steps, else in the part's order."""
    by_trial = {row.trial: row for row in final}
    found = []
    for point in part.points:
        best = search_for(study, part, point).found(tuning)
        if best is None:
            continue
        trials = {seed: tuned_trial(study, point, part.problem, best, seed=seed) for seed in part.problem.seeds}
        rows = {seed: by_trial[each] for seed, each in trials.items() if each in by_trial}
        if rows:
            found.append(Found(point, rows))
    return sorted(found, key=lambda each: (-each.point.inner_steps, each.point.islands))


def baseline_of(part: Part, found: Sequence[Found], one: Found) -> Found | None:
    """The part's baseline with as many islands and inner steps; without it, with as many inner steps."""
    candidates = [each for each in found if each.point.variant == part.baseline]
    same = [each for each in candidates if each.point.inner_steps == one.point.inner_steps]
    exact = [each for each in same if each.point.islands == one.point.islands]
    return next(iter(exact or (same if one.point.islands == 1 and len(same) == 1 else [])), None)


@dataclass(frozen=True)
class Step:
    """Two neighbours of a claimed order: `held` of `seeds` have the left value below the right one."""

    left: str
    right: str
    difference: Spread  # right - left
    held: int
    seeds: int

    @property
    def holds(self) -> bool:
        return self.difference.mean > 0


@dataclass(frozen=True)
class Verdict:
    """A claim of a paper beside the rows."""

    claim: str
    steps: tuple[Step, ...]
    missing: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        if self.missing:
            return "not measured"
        if all(step.held == step.seeds for step in self.steps):
            return "agrees, with every seed"
        if all(step.holds for step in self.steps):
            return "agrees in the mean, not with every seed"
        return "agrees in part" if any(step.holds for step in self.steps) else "does not agree"


def judge_order(order: Order, found: Sequence[Found]) -> Verdict:
    """Whether the variants' values come in the claimed order, neighbour by neighbour."""
    there = {
        each.point.variant: each
        for each in found
        if (each.point.islands, each.point.inner_steps) == (order.islands, order.inner_steps)
    }
    missing = tuple(variant for variant in order.variants if variant not in there)
    pairs = [] if missing else list(itertools.pairwise(order.variants))
    return Verdict(order.claim, tuple(_step(there[a], there[b], a, b, order.of) for a, b in pairs), missing)


def _step(left: Found, right: Found, left_name: str, right_name: str, field: str) -> Step:
    each = differences(right, left, field)
    return Step(left_name, right_name, Spread.of(each), sum(value > 0 for value in each), len(each))


def gaps(growth: Growth, found: Sequence[Found]) -> dict[int, list[float]]:
    """`over` minus `under` for each seed, by number of islands."""
    by_variant: dict[str, dict[int, Found]] = {growth.over: {}, growth.under: {}}
    for each in found:
        by_variant.get(each.point.variant, {})[each.point.islands] = each
    over, under = by_variant[growth.over], by_variant[growth.under]
    return {islands: differences(over[islands], under[islands]) for islands in sorted(over.keys() & under.keys())}


def judge_growth(growth: Growth, found: Sequence[Found]) -> Verdict:
    """Whether the gap grows from each number of islands to the next one."""
    by_islands = gaps(growth, found)
    steps = []
    for fewer, more in itertools.pairwise(by_islands):
        each = [b - a for a, b in zip(by_islands[fewer], by_islands[more], strict=False)]
        steps.append(Step(f"{fewer}", f"{more} islands", Spread.of(each), sum(v > 0 for v in each), len(each)))
    return Verdict(growth.claim, tuple(steps), () if steps else (growth.over, growth.under))
