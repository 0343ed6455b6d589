"""The search: where it goes, and that it stays within its runs."""

import math

from loco_train.study.tuning import coordinate_search, is_finished, neighbour, searches


def bowl(trial) -> float:
    """Lowest at inner lr 0.04, outer lr 0.5, momentum 0.8."""
    distances = (math.log(trial.inner_lr / 0.04), math.log(trial.outer_lr / 0.5), 2 * (trial.momentum - 0.8))
    return sum(distance**2 for distance in distances)


def visited(search, evaluate) -> list:
    trials: list = []

    def loss(trial):
        trials.append(trial)
        return evaluate(trial)

    coordinate_search(search, loss)
    return trials


def test_it_finds_the_bottom_and_asks_nothing_twice(tiny):
    tiny = tiny.model_copy(update={"tuning": tiny.tuning.model_copy(update={"runs": 100})})
    trials = visited(searches(tiny)[0], bowl)
    best = min(trials, key=bowl)
    assert best.inner_lr == 0.04
    assert best.momentum == 0.8
    assert best.outer_lr == 0.5
    assert len(set(trials)) == len(trials)


def test_it_begins_at_the_methods_defaults_and_keeps_to_its_runs(tiny):
    search = searches(tiny)[0]
    trials = visited(search, bowl)
    assert (trials[0].outer_lr, trials[0].momentum) == (0.7, 0.9)
    assert len(trials) == tiny.tuning.runs == 3
    assert all(search.covers(trial) for trial in trials)


def test_it_goes_on_past_a_run_that_diverged(tiny):
    trials = visited(searches(tiny)[0], lambda trial: math.inf if trial.outer_lr > 0.6 else bowl(trial))
    assert min(trials, key=bowl).outer_lr < 0.6


def test_an_axis_ends(tiny):
    trial = searches(tiny)[0].first
    highest = neighbour(tiny.tuning, "momentum", trial, 1)
    assert highest.momentum == 0.95
    assert neighbour(tiny.tuning, "momentum", highest, 1) is None


def test_finished_or_not(tiny):
    assert not is_finished(searches(tiny)[0], [])
