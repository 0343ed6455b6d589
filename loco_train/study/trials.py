"""One run of a study, from what decides it to its row."""

from __future__ import annotations

import functools
import math
import subprocess
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from loco_train.config.load import load_run
from loco_train.config.schema import RunConfig
from loco_train.errors import NonFinite
from loco_train.simulation.stacked_llama import Shape
from loco_train.simulation.text import Corpus, TextSettings, WarmStart, run_text, total_tokens, warm_start
from loco_train.study.rows import Row, Trial
from loco_train.study.settings import Point, Problem, StudyConfig

_CODE = ("loco_train", "kernels", "configs", "tools")
_NOTHING: dict[str, float | int | None] = dict.fromkeys(
    ("loss", "perplexity", "island_loss", "l2", "js", "l2_max", "js_max", "l2_before", "js_before", "tokens", "bytes")
)


def trial(
    study: StudyConfig, point: Point, problem: Problem, *, seed: int, inner_lr: float, outer_lr: float, momentum: float
) -> Trial:
    """The run of a point with these values."""
    variant, shape = study.variants[point.variant], problem.shape
    return Trial(
        study=study.name,
        variant=point.variant,
        method=variant.method,
        settings=variant.settings,
        islands=point.islands,
        inner_steps=point.inner_steps,
        batch=problem.batch,
        steps=problem.steps,
        shape=(shape.layers, shape.hidden, shape.heads, shape.ffn, shape.sequence),
        seed=seed,
        inner_lr=inner_lr,
        outer_lr=outer_lr,
        momentum=momentum,
    )


def tuned_trial(study: StudyConfig, point: Point, problem: Problem, tuned: Trial, *, seed: int) -> Trial:
    """The run of a point with the values of `tuned`."""
    values = {"inner_lr": tuned.inner_lr, "outer_lr": tuned.outer_lr, "momentum": tuned.momentum}
    return trial(study, point, problem, seed=seed, **values)


def method_settings(trial: Trial, *, defaults: bool = False) -> RunConfig:
    """The run's settings, checked. defaults: with the method's own outer lr and momentum."""
    outer = [] if defaults else [f"outer.lr={trial.outer_lr}", f"outer.momentum={trial.momentum}"]
    changes = [f"inner_steps={trial.inner_steps}", *trial.settings, *outer]
    overrides = [f"method={trial.method}", f"islands.count={trial.islands}", *(f"method.{text}" for text in changes)]
    return load_run("quickstart", overrides).config


def run_trial(trial: Trial, *, study: StudyConfig, commit: str, corpus: Corpus | None = None) -> Row:
    """Do one run; one that diverges is a row without losses. corpus: the standard library's where None."""
    config, settings = method_settings(trial), _text_settings(trial, study)
    corpus = corpus or Corpus.of_standard_library(settings.shape.sequence)
    shared = TextSettings(
        rounds=0,
        batch=trial.batch,
        warm_up_steps=study.warm_up_steps,
        warm_up_lr=study.warm_up_lr,
        seed=trial.seed,
        shape=settings.shape,
    )
    start = _warm_start(shared, corpus, total_tokens(settings, config))
    began = time.perf_counter()
    found = _NOTHING | _run(config, settings, corpus, start)
    own: dict[str, Any] = {field.name: getattr(trial, field.name) for field in fields(Trial)} | found
    return Row(
        **own,
        parameters=settings.shape.layout.numel,
        wall_seconds=round(time.perf_counter() - began, 2),
        commit=commit,
        torch=torch.__version__,
    )


def _run(config: RunConfig, settings: TextSettings, corpus: Corpus, start: WarmStart) -> dict[str, float | int | None]:
    try:
        result = asdict(run_text(config, settings, corpus, start=start))
    except NonFinite:
        return {}
    sent = result.pop("sent_bytes")
    return {**result, "bytes": sent, "perplexity": math.exp(min(700, result["loss"]))}


def _text_settings(trial: Trial, study: StudyConfig) -> TextSettings:
    rounds = trial.steps // trial.inner_steps
    return TextSettings(
        rounds=rounds,
        inner_lr=trial.inner_lr,
        batch=trial.batch,
        warm_up_steps=study.warm_up_steps,
        warm_up_lr=study.warm_up_lr,
        seed=trial.seed,
        evaluate_every=max(1, rounds // study.evaluations),
        shape=_shape(trial),
    )


def _shape(trial: Trial) -> Shape:
    layers, hidden, heads, ffn, sequence = trial.shape
    return Shape(layers, hidden, heads, ffn, sequence)


@functools.lru_cache(maxsize=8)
def _warm_start(settings: TextSettings, corpus: Corpus, tokens: int) -> WarmStart:
    return warm_start(settings, corpus, total_tokens=tokens)


def code_commit() -> str:
    """The checkout's commit, with -dirty where code or configs differ from it; `unknown` outside a checkout."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *_CODE)
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
