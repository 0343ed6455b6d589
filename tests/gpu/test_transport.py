"""NCCL between islands."""

import time

import pytest
import torch

from loco_train.errors import DeadlineExceeded
from loco_train.testing import World, run_islands
from loco_train.transport import Counterparts, connect_rendezvous
from loco_train.transport.counterparts import Position


def nccl_counterparts(world: World, *, timeout_seconds: float) -> Counterparts:
    device = torch.device("cuda", world.island)
    torch.cuda.set_device(device)
    return Counterparts(
        connect_rendezvous(world.rendezvous, timeout_seconds=30),
        prefix="gpu",
        position=Position(0, 0, 0),
        index=world.island,
        count=world.islands,
        device=device,
        backend="nccl",
        timeout_seconds=timeout_seconds,
        bucket_bytes=4096,
    )


def exchanges_over_nccl(world: World) -> list[list[float]]:
    group = nccl_counterparts(world, timeout_seconds=60)
    own = torch.full((5000,), float(world.island + 1), device=group.device)
    averaged, mixed, gathered = own.clone(), own.clone(), own.new_zeros(2, 5000)
    group.mean(averaged).wait()
    group.mix(mixed, {world.island: 0.75, 1 - world.island: 0.25}).wait()
    group.gather(own, gathered).wait()
    return [tensor.unique().tolist() for tensor in (averaged, mixed, *gathered)]


def mean_that_one_island_does_not_join(world: World) -> str:
    group = nccl_counterparts(world, timeout_seconds=20)
    if world.island == 1:
        time.sleep(30)
        return "stayed away"
    with pytest.raises(DeadlineExceeded) as raised:
        group.mean(torch.ones(5000, device=group.device)).wait()
    return str(raised.value)


def test_islands_on_two_gpus_exchange_over_nccl():
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for each island")
    first, second = run_islands(exchanges_over_nccl, islands=2, backend="nccl", timeout_seconds=170)
    assert first == [[[1.5], [1.25], [1.0], [2.0]]]
    assert second == [[[1.5], [1.75], [1.0], [2.0]]]


def test_an_island_that_stays_away_is_a_typed_error_at_the_deadline():
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for each island")
    first, second = run_islands(mean_that_one_island_does_not_join, islands=2, backend="nccl", timeout_seconds=170)
    assert "deadline 20 s" in first[0]
    assert second == ["stayed away"]
