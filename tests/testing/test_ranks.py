"""Real ranks: results come back in order, and every way to fail is told."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from loco_train.testing import RankFailed, World, run_islands, run_ranks


def sum_over_island(world: World, scale: int) -> float:
    value = torch.tensor(float(world.rank + 1) * scale)
    dist.all_reduce(value)
    return value.item()


def fail_on_rank_one(world: World) -> None:
    if world.rank == 1:
        raise ValueError("rank one does not want to")


def die_on_rank_one(world: World) -> None:
    if world.rank == 1:
        os.kill(os.getpid(), 9)


def sleep_for_ever(world: World) -> None:
    time.sleep(600)


def test_results_come_back_by_rank_from_one_shared_group():
    assert run_ranks(sum_over_island, 10, ranks=3) == [60.0, 60.0, 60.0]


def test_islands_have_worlds_of_their_own():
    assert run_islands(sum_over_island, 1, islands=2, ranks=2) == [[3.0, 3.0], [3.0, 3.0]]


def test_an_exception_in_a_rank_is_raised_with_its_traceback():
    with pytest.raises(RankFailed, match="island 0 rank 1[^$]*ValueError: rank one does not want to"):
        run_ranks(fail_on_rank_one)


def test_a_killed_rank_is_reported():
    with pytest.raises(RankFailed, match="island 0 rank 1: the process died"):
        run_ranks(die_on_rank_one)


def test_a_rank_that_hangs_is_ended_at_the_deadline():
    begin = time.monotonic()
    with pytest.raises(RankFailed, match="no answer within the deadline"):
        run_ranks(sleep_for_ever, timeout_seconds=1)
    assert time.monotonic() - begin < 30
