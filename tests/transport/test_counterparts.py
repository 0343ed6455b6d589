"""Counterparts over real gloo groups: right means, bit-equal everywhere, every byte accounted for, typed failures."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from loco_train.errors import ConfigError, EnvironmentProblem, TransportError
from loco_train.testing import World, run_islands
from loco_train.transport import Counterparts, connect_rendezvous
from loco_train.transport.counterparts import Position

BUCKET_BYTES = 4096


def counterparts(world: World, *, timeout_seconds: float = 30, **changes) -> Counterparts:
    settings = {"backend": "auto", "bucket_bytes": BUCKET_BYTES, "interface": None, **changes}
    return Counterparts(
        connect_rendezvous(world.rendezvous, timeout_seconds=20),
        prefix="test",
        position=Position(0, world.rank, 0),
        index=world.island,
        count=world.islands,
        device=torch.device("cpu"),
        timeout_seconds=timeout_seconds,
        **settings,
    )


def own_values(world: World, island: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * island + 10 * world.rank + size)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def mean_of_sizes(world: World, sizes: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    group = counterparts(world)
    found = []
    for dtype in (torch.float32, torch.float64):
        for size in sizes:
            tensor = own_values(world, world.island, size, dtype)
            group.mean(tensor).wait()
            everyone = torch.stack([own_values(world, i, size, dtype) for i in range(world.islands)])
            found.append((tensor, everyone.double().mean(0)))
    return found


def mix_with_neighbours(world: World) -> list[torch.Tensor]:
    """A chain 0 - 1 - 2 and an island 3 on its own, with another size at each step."""
    group = counterparts(world)
    weights = [{0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.2, 2: 0.3}, {1: 0.3, 2: 0.7}, {3: 1.0}][world.island]
    found = []
    for size in (1, 5000, 0):
        tensor = own_values(world, world.island, size, torch.float32)
        if len(weights) > 1:
            group.mix(tensor, weights).wait()
        found.append(tensor)
    assert group.counter.bytes_sent == (len(weights) - 1) * 5001 * 4
    return found


def test_mixes_are_weighted_sums_and_nobody_else_takes_part():
    results = run_islands(mix_with_neighbours, islands=4)
    table = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.2, 0.3, 0], [0, 0.3, 0.7, 0], [0, 0, 0, 1]], dtype=torch.float64)
    for index, size in enumerate((1, 5000, 0)):
        own = torch.stack([own_values(World(i, 4, 0, 1, "", None), i, size, torch.float32) for i in range(4)])
        for island, expected in enumerate(table @ own.double()):
            # Three products of values below 8 and two sums, each within half an ulp.
            bound = 5 * 8 * torch.finfo(torch.float32).eps / 2
            assert size == 0 or (results[island][0][index] - expected).abs().max() < bound


def gather_from_all(world: World) -> list[torch.Tensor]:
    group = counterparts(world)
    found = []
    for size in (1, 5000, 0):
        out = torch.full((world.islands, size), torch.nan)
        group.gather(own_values(world, world.island, size, torch.float32), out).wait()
        found.append(out)
    assert group.counter.bytes_sent == (world.islands - 1) * 5001 * 4
    return found


@pytest.mark.parametrize("islands", [1, 3])
def test_gathers_bit_for_bit_in_the_order_of_the_islands(islands):
    for (found,) in run_islands(gather_from_all, islands=islands):
        for size, got in zip((1, 5000, 0), found, strict=True):
            own = [own_values(World(i, islands, 0, 1, "", None), i, size, torch.float32) for i in range(islands)]
            assert torch.equal(got, torch.stack(own))


def mix_in_pairs(world: World) -> torch.Tensor:
    group = counterparts(world)
    tensor = own_values(world, world.island, 5000, torch.float32)
    pending = group.mix(tensor, {world.island: 0.5, 1 - world.island: 0.5})
    pending.wait()
    return tensor


def test_both_sides_of_a_pair_get_the_same_bits():
    (one,), (other,) = run_islands(mix_in_pairs, islands=2)
    assert torch.equal(one, other)


@pytest.mark.parametrize("islands", [2, 3])
def test_means_are_right_and_bit_equal_on_all_islands_at_every_position(islands):
    # Of a bucket of 1024 fp32 or 512 fp64 elements: one, just under, exactly, just over, many with a rest, none.
    sizes = [1, 511, 512, 513, 1023, 1024, 1025, 5000, 0]
    results = run_islands(mean_of_sizes, sizes, islands=islands, ranks=2)
    for rank in range(2):
        for island in range(islands):
            for (got, expected), (first, _) in zip(results[island][rank], results[0][rank], strict=True):
                assert torch.equal(got, first)
                # A sum of 3 values below 8 has two roundings, the division one more.
                eps = torch.finfo(got.dtype).eps
                torch.testing.assert_close(got.double(), expected, rtol=0, atol=3 * 8 * eps)


def bytes_of_exchanges(world: World) -> tuple[int, int | None]:
    group = counterparts(world, bucket_bytes=2**20)
    # The island's own traffic goes over the same interface and must not be counted.
    for _ in range(3):
        dist.all_reduce(torch.ones(2**20))
    for size in (2**20, 999_983):
        group.mean(torch.ones(size)).wait()
    return group.counter.bytes_sent, group.sockets.bytes_sent()


@pytest.mark.parametrize("islands", [2, 3, 4])
def test_counted_bytes_are_those_on_the_sockets_within_three_percent(islands):
    payload = 4 * (2**20 + 999_983)
    for island in run_islands(bytes_of_exchanges, islands=islands, ranks=1 if islands > 2 else 2):
        for counted, on_sockets in island:
            assert counted == pytest.approx(2 * (islands - 1) / islands * payload, abs=2)
            assert on_sockets == pytest.approx(counted, rel=0.03)


def exchange_with_a_dying_island(world: World, how: int, timeout_seconds: float) -> tuple[str, float, float, str]:
    group = counterparts(world, timeout_seconds=timeout_seconds)
    group.mean(torch.ones(1000)).wait()
    assert not group.lost()
    dist.barrier()
    if world.island == 1:
        os.kill(os.getpid(), how)
    deadline = time.monotonic() + 10
    while not group.lost():
        assert time.monotonic() < deadline, "the kernel did not tell that the other side has ended"
        time.sleep(0.01)
    begin = time.monotonic()
    with pytest.raises(TransportError) as caught:
        group.mean(torch.ones(1000)).wait()
    seconds = time.monotonic() - begin
    with pytest.raises(TransportError) as again:
        group.mean(torch.ones(1000))
    assert again.value is caught.value
    assert group.lost()
    own = torch.ones(1)
    dist.all_reduce(own)  # the island's own group is not touched by it
    return type(caught.value).__name__, seconds, own.item(), str(caught.value)


def test_a_killed_island_is_noticed_and_the_islands_own_group_lives_on():
    survivors, _ = run_islands(exchange_with_a_dying_island, signal.SIGKILL, 20.0, ranks=2, mortal=[1])
    for kind, seconds, own, message in survivors:
        assert kind in ("PeerLost", "DeadlineExceeded")
        assert seconds < 20
        assert own == 2.0
        assert "network.exchange_timeout" in message


def exchange_with_a_hung_island(world: World) -> tuple[str, float]:
    group = counterparts(world, timeout_seconds=2)
    pid_file = world.folder / "pid"
    if world.island == 1:
        pid_file.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        return "", 0.0
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.05)
    begin = time.monotonic()
    try:
        with pytest.raises(TransportError) as caught:
            group.mean(torch.ones(1000)).wait()
        return type(caught.value).__name__, time.monotonic() - begin
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_a_hung_island_is_given_up_at_the_deadline():
    ((kind, seconds),), _ = run_islands(exchange_with_a_hung_island, mortal=[1])
    assert kind == "DeadlineExceeded"
    assert 1.5 < seconds < 10


def late_island(world: World) -> float:
    if world.island == 1:
        time.sleep(2)
    tensor = torch.tensor([float(world.island)])
    counterparts(world).mean(tensor).wait()
    return tensor.item()


def test_a_late_island_is_waited_for():
    assert run_islands(late_island, islands=2) == [[0.5], [0.5]]


def alone(world: World) -> list[float]:
    group = counterparts(world, timeout_seconds=1)
    with pytest.raises(TransportError):
        # Nobody else comes: the group of two is never complete.
        Counterparts(
            connect_rendezvous(world.rendezvous, timeout_seconds=5),
            prefix="nobody",
            position=Position(0, 0, 0),
            index=0,
            count=2,
            device=torch.device("cpu"),
            backend="gloo",
            timeout_seconds=1,
            bucket_bytes=BUCKET_BYTES,
        )
    tensor = torch.tensor([3.0])
    group.mean(tensor).wait()
    return tensor.tolist()


def test_one_island_is_its_own_mean_and_a_missing_one_is_reported_by_the_deadline():
    assert run_islands(alone, islands=1) == [[[3.0]]]


def build(**changes) -> Counterparts:
    settings = {"backend": "auto", "bucket_bytes": 64, "timeout_seconds": 1, **changes}
    return Counterparts(
        None, prefix="x", position=Position(0, 0, 0), index=0, count=1, device=torch.device("cpu"), **settings
    )


def test_wrong_tensors_and_backends_are_refused():
    group = build()
    for wrong in (torch.ones(2, 2), torch.ones(4)[::2], torch.ones(4, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="flat contiguous fp32 or fp64"):
            group.mean(wrong)
    with pytest.raises(ConfigError, match="nccl needs GPUs"):
        build(backend="nccl")


def unknown_interface(world: World) -> str:
    with pytest.raises(EnvironmentProblem, match="not on this machine") as caught:
        counterparts(world, interface="no-such-interface")
    over_loopback = counterparts(world, interface="lo")
    tensor = torch.tensor([float(world.island)])
    over_loopback.mean(tensor).wait()
    assert tensor.item() == 0.5
    return str(caught.value)


def test_an_unknown_interface_is_named_with_those_that_are_there():
    for island in run_islands(unknown_interface, islands=2):
        assert "lo" in island[0]
