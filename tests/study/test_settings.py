"""The shipped study can be done, and what is wrong with one is told."""

import pytest

from loco_train.config.load import available
from loco_train.errors import ConfigError
from loco_train.study.settings import load_study
from loco_train.study.trials import method_settings
from loco_train.study.tuning import search_for, searches

from .conftest import TINY


@pytest.mark.parametrize("name", available("studies"))
def test_every_point_has_a_search(name):
    study = load_study(name)
    found = searches(study)
    for part in study.parts.values():
        assert all(search_for(study, part, point) in found for point in part.points)
    for search in found:
        method_settings(search.first)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("baseline: diloco", "baseline: nothing", "parts.a names 'nothing', which is none of the variants"),
        ("islands: 4, ", "islands: 3, ", "pairs on 3 islands cannot share 4 sequences"),
        ("steps: 8", "steps: 9", "9 steps are no whole number of rounds of 4"),
        ("seed: 9", "seed: 1", "tuning.seed is one of its seeds"),
        ("title: Two", "titel: Two", r"parts.a.titel \(tiny.yaml:11\)"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, old, new, message):
    path = tmp_path / "tiny.yaml"
    assert old in TINY
    path.write_text(TINY.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_study(path)


def test_a_study_that_is_not_there():
    with pytest.raises(ConfigError, match="cannot read"):
        load_study("no-such-study")
