"""A study's rows as a document: a table for each part, and what agrees with the papers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from loco_train.study.findings import (
    Found,
    Spread,
    Verdict,
    baseline_of,
    differences,
    find,
    gaps,
    judge_growth,
    judge_order,
)
from loco_train.study.pictures import draw
from loco_train.study.rows import Row
from loco_train.study.settings import Part, StudyConfig
from loco_train.study.tuning import is_finished, searches
from loco_train.study.work import Place

_COLUMNS = (
    "variant",
    "islands",
    "H",
    "inner lr",
    "outer lr",
    "momentum",
    "loss",
    "perplexity",
    "less baseline",
    "L2 before",
    "JS before",
    "L2 after",
    "JS after",
    "MB an island",
    "s",
)


def write_table(place: Place) -> list[Path]:
    """Document and pictures beside the rows; the files written.

    Raises:
        DataError: a line of the rows' files is no row of this study.
    """
    tuning, final = place.read_tuning(), place.read_final()
    written = []
    for name, part in place.study.parts.items():
        picture = place.rows / f"study-{name}.svg"
        if draw(part, find(place.study, part, tuning=tuning, final=final), picture):
            written.append(picture)
    drawn = [path.stem.removeprefix("study-") for path in written]
    table = place.rows / "study.md"
    table.write_text(document(place.study, tuning=tuning, final=final, pictures=drawn), encoding="utf-8")
    return [table, *written]


def document(study: StudyConfig, *, tuning: Sequence[Row], final: Sequence[Row], pictures: Sequence[str]) -> str:
    """The whole document, Markdown. pictures: names of the parts that have one."""
    found = {name: find(study, part, tuning=tuning, final=final) for name, part in study.parts.items()}
    lines = [*_head(study, tuning=tuning, found=found), *_verdicts(study, found)]
    for name, part in study.parts.items():
        lines += _part(name, part, found[name], picture=name in pictures)
    lines += _tuning(study, tuning)
    return "\n".join(lines).rstrip() + "\n"


def _head(study: StudyConfig, *, tuning: Sequence[Row], found: dict[str, list[Found]]) -> Iterator[str]:
    used = {row.trial: row for each in found.values() for point in each for row in point.rows.values()}.values()
    seconds, tuned = sum(row.wall_seconds for row in used), sum(row.wall_seconds for row in tuning)
    yield f"# Study `{study.name}`: the rows, and what they say of the papers"
    yield ""
    yield "Written by `tools/study.py table` from study.jsonl and study-tuning.jsonl; do not edit. How it is meant, and"
    yield "what follows from it: ../study.md."
    yield ""
    yield f"- {len(used)} final runs, {seconds / 60:.0f} minutes of one core; {len(tuning)} tuning runs (seed"
    yield f"  {study.tuning.seed}, which is none of the final ones), {tuned / 60:.0f} minutes."
    yield f"- Commits: {_several(row.commit for row in used)}; of the tuning: {_several(row.commit for row in tuning)}."
    yield f"  torch {_several(row.torch for row in used)}."
    yield "- Loss: held-out, of the mean of the islands, nats a byte; ± is the sample deviation over seeds. Less"
    yield "  baseline: difference seed by seed. L2, JS before: the islands' mean distance from their mean after the"
    yield "  inner steps, the largest of the evaluated rounds; after: the same after the outer step."
    yield ""


def _several(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))) or "none"


def _verdicts(study: StudyConfig, found: dict[str, list[Found]]) -> Iterator[str]:
    yield "## What agrees with the papers"
    yield ""
    yield "Computed from the rows. An order holds between two neighbours when the mean of their differences says so; in"
    yield "brackets: the difference in nats (or of the distance), and in how many seeds it holds."
    yield ""
    for name, part in study.parts.items():
        for verdict in _judged(part, found[name]):
            yield f"- **{verdict.says}** ({name}): {verdict.claim}."
            yield from (f"  - {line}" for line in _steps(verdict))
    yield ""


def _judged(part: Part, found: Sequence[Found]) -> list[Verdict]:
    orders = [judge_order(order, found) for order in part.orders]
    return orders + [judge_growth(growth, found) for growth in part.growth]


def _steps(verdict: Verdict) -> Iterator[str]:
    if verdict.missing:
        yield f"no rows of {', '.join(verdict.missing)}"
    for step in verdict.steps:
        sign = "<" if step.holds else "not <"
        yield f"{step.left} {sign} {step.right} ({_signed(step.difference)}; {step.held} of {step.seeds})"


def _part(name: str, part: Part, found: Sequence[Found], *, picture: bool) -> Iterator[str]:
    problem = part.problem
    yield f"## {name}. {part.title}"
    yield ""
    yield f"{problem.batch} sequences of {problem.shape.sequence} bytes a step, {problem.steps} inner steps; baseline: "
    yield f"{part.baseline}. Values marked * were tuned for another point."
    yield ""
    if picture:
        yield f"![{part.title}](study-{name}.svg)"
        yield ""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"|{'---|' * len(_COLUMNS)}"
    for each in found:
        yield f"| {' | '.join(_cells(part, found, each))} |"
    yield ""
    for growth in part.growth:
        told = ", ".join(f"{islands}: {_signed(Spread.of(gap))}" for islands, gap in gaps(growth, found).items())
        yield f"{growth.over} less {growth.under}, nats, by islands: {told}."
        yield ""


def _cells(part: Part, found: Sequence[Found], each: Found) -> list[str]:
    point, row = each.point, next(iter(each.rows.values()))
    borrowed = not part.tuned or any((point.tuned_islands, point.tuned_variant, point.tuned_inner_steps))
    baseline = baseline_of(part, found, each)
    less = "" if baseline in (None, each) else _signed(Spread.of(differences(each, baseline)))
    return [
        point.variant,
        str(point.islands),
        str(point.inner_steps),
        *(f"{value:.3g}{'*' if borrowed else ''}" for value in (row.inner_lr, row.outer_lr, row.momentum)),
        _told(each.spread("loss")),
        _told(each.spread("perplexity"), digits=3),
        less,
        *(_plain(each, field, digits) for field, digits in (("l2_before", 2), ("js_before", 3))),
        *(_plain(each, field, digits) for field, digits in (("l2_max", 2), ("js_max", 3))),
        _plain(each, "bytes", 1, scale=1e-6 / point.islands),
        _plain(each, "wall_seconds", 0),
    ]


def _told(spread: Spread, *, digits: int = 4) -> str:
    if math.isinf(spread.mean):
        return "diverged"
    deviation = f" ± {spread.deviation:.{digits}f}" if spread.count > 1 else ""
    return f"{spread.mean:.{digits}f}{deviation}"


def _signed(spread: Spread) -> str:
    if math.isinf(spread.mean):
        return "diverged"
    return f"{spread.mean:+.4f}" + (f" ± {spread.deviation:.4f}" if spread.count > 1 else "")


def _plain(each: Found, field: str, digits: int, *, scale: float = 1.0) -> str:
    mean = each.spread(field).mean
    return "-" if math.isinf(mean) else f"{mean * scale:.{digits}f}"


def _tuning(study: StudyConfig, rows: Sequence[Row]) -> Iterator[str]:
    chosen = searches(study)
    finished = sum(is_finished(search, rows) for search in chosen)
    yield "## Tuning"
    yield ""
    yield "Inner lr, outer lr and momentum by a search along one axis at a time from the method's defaults, at most"
    yield f"{study.tuning.runs} runs each, seed {study.tuning.seed}; {finished} of {len(chosen)} searches are complete."
    yield ""
    yield "| variant | islands | H | batch | runs | defaults | loss | found | loss |"
    yield f"|{'---|' * 9}"
    for search in chosen:
        own = [row for row in rows if search.covers(row.trial)]
        begun = [row for row in own if row.trial == search.first]
        if begun and (best := search.found(own)):
            first = search.first
            where = [first.variant, str(first.islands), str(first.inner_steps), str(first.batch), str(len(own))]
            yield f"| {' | '.join([*where, *_valued(begun[0]), *_valued(best)])} |"


def _valued(row: Row) -> tuple[str, str]:
    values = f"{row.inner_lr:.3g}, {row.outer_lr:.3g}, {row.momentum:.3g}"
    return values, "diverged" if row.loss is None else f"{row.loss:.4f}"
