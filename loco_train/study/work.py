"""The runs of a study over processes: what is there already is not done again."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loco_train.errors import ConfigError
from loco_train.simulation.text import Corpus
from loco_train.study.rows import Row, Trial, append_row, read_rows
from loco_train.study.settings import StudyConfig
from loco_train.study.trials import run_trial, tuned_trial
from loco_train.study.tuning import Search, coordinate_search, losses_of, search_for, searches

# glibc gives large blocks back to the system at once: a step of 64 islands spends most of its time on page faults.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
_ALONE = {"OMP_NUM_THREADS": "1"} | _MALLOC


@dataclass(frozen=True)
class Place:
    """Where a study is done. processes: 0 for this one. corpus: None for the standard library's."""

    study: StudyConfig
    rows: Path
    commit: str
    processes: int = 0
    corpus: Corpus | None = None

    @property
    def tuning_rows(self) -> Path:
        return self.rows / "study-tuning.jsonl"

    @property
    def final_rows(self) -> Path:
        return self.rows / "study.jsonl"

    def read_tuning(self) -> list[Row]:
        return read_rows(self.tuning_rows, study=self.study.name)

    def read_final(self) -> list[Row]:
        return read_rows(self.final_rows, study=self.study.name)


def tune(place: Place, *, parts: Sequence[str] = (), told: Callable[[str], None] = print) -> None:
    """Search for the values of every tuned point; parts: only of these."""
    chosen = searches(_only(place.study, parts))
    done = place.read_tuning()
    for line in _each(_tune_one, [(place, search, done) for search in chosen], place.processes):
        told(line)


def run(place: Place, *, parts: Sequence[str] = (), told: Callable[[str], None] = print) -> None:
    """Do the final runs that are missing, with the tuned values; parts: only of these."""
    done = {row.trial for row in place.read_final()}
    missing = [each for each in final_trials(place, parts=parts) if each not in done]
    told(f"{len(missing)} runs to do")
    for line in _each(_run_one, [(place, each) for each in missing], place.processes):
        told(line)


def final_trials(place: Place, *, parts: Sequence[str] = ()) -> list[Trial]:
    """Every final run once: seeds outermost, so that a study that was stopped has whole seeds."""
    tuned = place.read_tuning()
    found: dict[Trial, None] = {}  # in this order
    study = _only(place.study, parts)
    for number in range(max(len(part.problem.seeds) for part in study.parts.values())):
        for part in study.parts.values():
            for point in part.points:
                best = search_for(place.study, part, point).found(tuned)
                if best is None:
                    raise ConfigError(
                        f"{point.variant} on {point.islands} islands is not tuned", fix="run the command `tune` first"
                    )
                for seed in part.problem.seeds[number : number + 1]:
                    found[tuned_trial(place.study, point, part.problem, best, seed=seed)] = None
    return list(found)


def _only(study: StudyConfig, parts: Sequence[str]) -> StudyConfig:
    unknown = [part for part in parts if part not in study.parts]
    if unknown:
        raise ConfigError("no such part", got=", ".join(unknown), allowed=", ".join(study.parts))
    return study.model_copy(update={"parts": {name: study.parts[name] for name in parts or study.parts}})


def _tune_one(place: Place, search: Search, done: Sequence[Row]) -> str:
    known = losses_of(done)
    before = [row for row in done if search.covers(row.trial)]
    rows: list[Row] = []

    def evaluate(tried: Trial) -> float:
        if tried not in known:
            rows.append(run_trial(tried, study=place.study, commit=place.commit, corpus=place.corpus))
            append_row(place.tuning_rows, rows[-1])
            return rows[-1].comparable_loss
        return known[tried]

    coordinate_search(search, evaluate)
    best = search.found([*before, *rows])
    return f"{len(rows)} runs; lowest: {_told(best)}" if best else "no runs"


def _run_one(place: Place, chosen: Trial) -> str:
    row = run_trial(chosen, study=place.study, commit=place.commit, corpus=place.corpus)
    append_row(place.final_rows, row)
    return _told(row)


def _told(row: Row) -> str:
    loss = "diverged" if row.loss is None else f"loss {row.loss:.4f}"
    values = f"inner lr {row.inner_lr:g}, outer lr {row.outer_lr:g}, momentum {row.momentum:g}"
    where = f"{row.islands} islands, H {row.inner_steps}, seed {row.seed}"
    return f"{row.variant}, {where}, {values}: {loss} in {row.wall_seconds:.0f} s"


def _call(task: tuple[Callable[..., str], tuple[object, ...]]) -> str:
    function, arguments = task
    return function(*arguments)


def _each(function: Callable[..., str], tasks: Sequence[tuple[object, ...]], processes: int) -> Iterable[str]:
    calls = [(function, arguments) for arguments in tasks]
    if not processes:
        yield from map(_call, calls)
        return
    os.environ.update(_ALONE)  # read by the C library and by torch when a process starts
    with multiprocessing.get_context("spawn").Pool(min(processes, max(1, len(calls)))) as pool:
        yield from pool.imap_unordered(_call, calls)
