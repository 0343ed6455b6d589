"""Documents of islands: what differs is named, whoever is missing too."""

import time

import pytest
import torch

from loco_train.errors import DeadlineExceeded, IslandMismatch, LocoError
from loco_train.testing import World, run_islands, run_ranks
from loco_train.transport.handshake import agree_on_start, compare_documents, differences, share, tensor_digests
from loco_train.transport.island import from_every_rank, on_leader
from loco_train.transport.store import connect_rendezvous


def test_equal_documents_have_no_differences():
    assert differences([{"a": 1, "b": {"c": [1, 2]}}] * 3) == []


def test_each_key_and_island_that_differs_is_named():
    odd = {"model": {"layers": 3, "heads": 4}, "lr": 1.0, "list": [1, 2], "shards": [{"n": 1}, {"n": 2}]}
    same = {"model": {"layers": 2, "heads": 4}, "list": [1, 3], "shards": [{"n": 1}, {"n": 5}]}
    assert differences([same, odd, same]) == [
        "list: [1, 3] at island 0, [1, 2] at island 1",
        "lr: (absent) at island 0, 1.0 at island 1",
        "model.layers: 2 at island 0, 3 at island 1",
        "shards[1].n: 5 at island 0, 2 at island 1",
    ]


def test_long_values_are_shortened():
    (line,) = differences([{"a": "x" * 1000}, {"a": "y" * 1000}])
    assert len(line) < 400


def start_twice(world: World) -> list[str]:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    where = {"index": world.island, "count": world.islands, "timeout_seconds": 20}
    first = agree_on_start(store, "run/start", **where)
    share(store, "all ran", document={}, **where)
    # One island is back at once and finds the others' words of before; the last one comes last.
    time.sleep(0.3 * world.island)
    return [first, agree_on_start(store, "run/start", **where)]


def test_every_start_has_a_word_of_its_own_that_all_islands_share():
    results = [island[0] for island in run_islands(start_twice, islands=3)]
    assert results[0] == results[1] == results[2]
    assert results[0][0] != results[0][1]


def come_as_island_0(world: World) -> tuple[str, list[list[int]]]:
    """Both processes do, the second one a second later, and nobody as island 1."""
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    share(store, "both ran", index=world.island, count=2, document={}, timeout_seconds=20)
    time.sleep(world.island)
    told: list[list[int]] = []
    where = {"index": 0, "count": 2, "timeout_seconds": 8}
    with pytest.raises(LocoError) as raised:
        agree_on_start(store, "run/start", on_waiting=lambda absent: told.append(list(absent)), **where)
    return f"{type(raised.value).__name__}: {raised.value}", told


def test_the_first_of_two_processes_that_come_as_one_island_is_told():
    (first,), (second,) = run_islands(come_as_island_0, islands=2)
    assert first[0].startswith("IslandMismatch: another process has come to the rendezvous as island 0")
    assert second[0].startswith("DeadlineExceeded: island 1 of 2 did not come")
    assert second[1] == [[1]]


def start_again_alone(world: World) -> str:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    where = {"index": world.island, "count": 2, "timeout_seconds": 20}
    agree_on_start(store, "run/start", **where)
    share(store, "all ran", document={}, **where)
    if world.island == 1:
        return ""
    with pytest.raises(DeadlineExceeded) as raised:
        agree_on_start(store, "run/start", **{**where, "timeout_seconds": 1})
    return str(raised.value)


def test_what_an_earlier_start_left_is_not_taken_for_an_island():
    (message,), _ = run_islands(start_again_alone, islands=2)
    assert "island 1 of 2 did not come to the rendezvous within 1 s" in message


def compare(world: World) -> tuple[list[dict], str]:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    where = {"index": world.island, "count": world.islands, "timeout_seconds": 20}
    shared = share(store, "sizes", document={"big": ["x" * 100] * 10_000, "island": world.island}, **where)
    compare_documents(store, "run/equal", document={"seed": 1}, **where)
    with pytest.raises(IslandMismatch) as caught:
        compare_documents(store, "run/settings", document={"seed": 1 if world.island != 2 else 7}, **where)
    return [document["island"] for document in shared], str(caught.value)


def test_every_island_sees_the_same_documents_and_the_odd_one_named():
    for ((islands, message),) in run_islands(compare, islands=3):
        assert islands == [0, 1, 2]
        assert "(settings)" in message
        assert "seed: 1 at island 0, 7 at island 2" in message
        assert "island 1" not in message


def wait_for_nobody(world: World) -> str:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    with pytest.raises(DeadlineExceeded) as caught:
        share(store, "alone", index=0, count=3, document={}, timeout_seconds=0.5)
    return str(caught.value)


def test_islands_that_do_not_come_are_named():
    assert "island 1, 2 of 3 did not come" in run_ranks(wait_for_nobody, ranks=1)[0]


def test_digests_tell_one_bit_and_do_not_depend_on_layout():
    tensor = torch.arange(6.0)
    changed = tensor.clone()
    changed[5] = torch.nextafter(changed[5], torch.tensor(9.0))
    strided = torch.stack([tensor, tensor], 1)[:, 0]
    digests = tensor_digests([("a", tensor), ("b", changed), ("c", strided)])
    assert digests["a"] == digests["c"] != digests["b"]


def leader_fails(world: World) -> tuple[str, str, list[str]]:
    def fail() -> str:
        raise LocoError("the leader's problem", got=3)

    with pytest.raises(LocoError) as caught:
        on_leader(fail)
    answer = on_leader(lambda: f"from rank {world.rank}")
    verdict = from_every_rank(f"rank {world.rank}")
    return str(caught.value), answer, verdict


def test_the_leaders_answer_or_error_reaches_every_rank():
    expected = ("the leader's problem\n  got: 3", "from rank 0", ["rank 0", "rank 1", "rank 2"])
    assert run_ranks(leader_fails, ranks=3) == [expected] * 3
