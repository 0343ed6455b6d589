"""Where the time goes: phases of a round and of a whole run."""

import time

import pytest

from loco_train.telemetry.meters import PHASES, PhaseClock


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_phases_add_up_and_rounds_are_taken_apart():
    clock = PhaseClock()
    with clock.phase("evaluate"):
        busy(0.02)  # before the first step: no part of the run's wall time
    clock.start()
    for _ in range(2):
        with clock.phase("compute"):
            busy(0.03)
    with clock.phase("wait"):
        busy(0.02)
    first = clock.take_round()
    with clock.phase("compute"):
        busy(0.01)
    second = clock.take_round()
    assert set(first) == set(PHASES)
    # A busy wait is never shorter than asked for.
    assert first["compute"] >= 0.06
    assert first["wait"] >= 0.02
    assert 0.01 <= second["compute"] < first["compute"]
    assert (second["wait"], first["evaluate"], clock.total("evaluate")) == (0, 0, 0)
    assert clock.total("compute") == pytest.approx(first["compute"] + second["compute"])
    assert clock.compute_utilization == pytest.approx(clock.total("compute") / clock.wall_seconds, rel=0.05)
    assert 0 < clock.compute_utilization <= 1


def fail_after(seconds: float, clock: PhaseClock) -> None:
    with clock.phase("save"):
        busy(seconds)
        raise ValueError("no")


def test_a_phase_that_fails_is_counted():
    clock = PhaseClock()
    clock.start()
    with pytest.raises(ValueError, match="no"):
        fail_after(0.01, clock)
    assert clock.total("save") >= 0.01


def test_an_unknown_phase_is_refused():
    with pytest.raises(KeyError), PhaseClock().phase("lunch"):
        pass


def test_before_the_start_nothing_is_divided():
    assert (PhaseClock().wall_seconds, PhaseClock().compute_utilization) == (0, 0)
