"""A study of two tiny points, on a text in which each byte follows from the one before, up to a few choices."""

from pathlib import Path

import pytest
import torch
import yaml

from loco_train.simulation.text import Corpus
from loco_train.study.settings import StudyConfig
from loco_train.study.work import Place

TINY = """
name: tiny
warm_up_steps: 20
evaluations: 2
tuning: {seed: 9, runs: 3, inner_lr: 1e-2}
variants:
  diloco: {method: diloco}
  pairs: {method: gasloc-1peer}
parts:
  a:
    title: Two methods
    problem: {batch: 4, steps: 8, seeds: [0, 1], shape: {layers: 1, hidden: 8, heads: 2, ffn: 16, sequence: 16}}
    baseline: diloco
    points:
      - {variant: diloco, islands: 2, inner_steps: 4}
      - {variant: pairs, islands: 4, inner_steps: 4, tuned_islands: 2}
      - {variant: pairs, islands: 2, inner_steps: 4}
    orders:
      - {claim: averaging is best, variants: [diloco, pairs], islands: 2, inner_steps: 4}
"""


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(1, 4, (300, 17), generator=generator).cumsum(1)
    drawn = (steps % 60 + 32).to(torch.uint8)
    return Corpus(drawn[:280], drawn[280:])


@pytest.fixture
def tiny() -> StudyConfig:
    # safe_load reads 1e-2 as text; the tests of settings go through load_study.
    return StudyConfig.model_validate(yaml.safe_load(TINY.replace("1e-2", "0.01")))


@pytest.fixture
def place(tiny, tmp_path: Path, corpus) -> Place:
    return Place(tiny, tmp_path, commit="abc1234", corpus=corpus)
