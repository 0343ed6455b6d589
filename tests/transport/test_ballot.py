"""One decision for all ranks of all islands."""

import time

import pytest

from loco_train.errors import DeadlineExceeded, PeerLost
from loco_train.testing import World, run_islands, run_ranks
from loco_train.transport import ballot as ballot_module
from loco_train.transport.ballot import Ballot
from loco_train.transport.store import connect_rendezvous


def ballot(world: World, *, timeout_seconds: float = 20) -> tuple[Ballot, object]:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    where = {"index": world.island, "count": world.islands, "timeout_seconds": timeout_seconds}
    return Ballot(store, prefix="run", **where), store


def decide_rounds(world: World) -> tuple[list[dict[int, str]], int]:
    ballot_module._VOTES_KEPT = 4
    votes, store = ballot(world)
    found = [votes.decide(f"round-{r}", "ok") for r in range(20)]
    bad_here = world.island == 1 and world.rank == 1
    found.append(votes.decide("last", "non-finite" if bad_here else "ok"))
    return found, store.num_keys()


def test_one_bad_rank_is_seen_by_every_rank_and_old_votes_are_gone():
    for island in run_islands(decide_rounds, islands=3, ranks=2):
        for found, keys in island:
            assert found == [{}] * 20 + [{1: "non-finite"}]
            # Five votes of three islands at most, and the store's own few: not 21 rounds.
            assert keys < 20


def decide_with_digests(world: World) -> list[dict[int, str]]:
    votes, _ = ballot(world)
    odd = world.island == 2 and world.rank == 1
    return [votes.decide("equal", "ok", digest=world.rank), votes.decide("odd", "ok", digest=7 if odd else world.rank)]


def test_a_digest_that_differs_on_one_rank_is_seen_by_every_island():
    first, second, third = run_islands(decide_with_digests, islands=3, ranks=2)
    assert first == second == [[{}, {2: "differs"}]] * 2
    assert third == [[{}, {0: "differs", 1: "differs"}]] * 2


def give_up_before_the_other_comes(world: World) -> str:
    """Island 0 waits one second; island 1 comes after three, and finds every vote."""
    votes, _ = ballot(world, timeout_seconds=1 if world.island == 0 else 20)
    if world.island == 1:
        time.sleep(3)
    with pytest.raises(DeadlineExceeded) as caught:
        votes.decide("round-0", "ok")
    return str(caught.value)


def test_a_late_island_does_not_take_what_another_has_given_up():
    (first,), (second,) = run_islands(give_up_before_the_other_comes, islands=2)
    assert "island 1 did not reach round-0" in first
    assert "another island had given up waiting at round-0" in second


def decide_by_twos(world: World) -> list[dict[int, str]]:
    votes, _ = ballot(world)
    if world.island == 2:
        return [votes.decide("later", "ok", voters=[2])]
    return [
        votes.decide(f"round-{r}", "failed" if (r, world.island) == (3, 0) else "ok", voters=[0, 1]) for r in range(4)
    ]


def test_only_voters_are_waited_for():
    (first,), (second,), (third,) = run_islands(decide_by_twos, islands=3)
    assert first == second == [{}, {}, {}, {0: "failed"}]
    assert third == [{}]


def wait_in_vain(world: World) -> tuple[str, float]:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    votes = Ballot(store, prefix="run", index=0, count=2, timeout_seconds=1)
    begin = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        votes.decide("round-0", "ok")
    return str(caught.value), time.monotonic() - begin


def test_an_island_that_does_not_vote_is_named_on_every_rank_by_the_deadline():
    for message, seconds in run_ranks(wait_in_vain, ranks=2):
        assert "island 1 did not reach round-0 within 1 s" in message
        assert seconds < 10


def fail_alone(world: World) -> dict[int, str]:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    return Ballot(store, prefix="run", index=0, count=2, timeout_seconds=60).decide("round-0", "failed")


def test_an_island_that_failed_does_not_wait_for_the_dead():
    assert run_ranks(fail_alone, ranks=2, timeout_seconds=30) == [{0: "failed"}] * 2


def alone(world: World) -> list[dict[int, str]]:
    votes = Ballot(None, prefix="run", index=0, count=1, timeout_seconds=1)
    return [votes.decide("a", "ok"), votes.decide("b", "bad")]


def test_one_island_decides_by_itself():
    assert run_ranks(alone, ranks=2) == [[{}, {0: "bad"}]] * 2


def give_up(world: World) -> tuple[str, float]:
    store = connect_rendezvous(world.rendezvous, timeout_seconds=10)
    begin = time.monotonic()
    votes = Ballot(
        store, prefix="run", index=0, count=2, timeout_seconds=60, hopeless=lambda: time.monotonic() > begin + 0.5
    )
    with pytest.raises(PeerLost) as caught:
        votes.decide("round-0", "ok")
    return str(caught.value), time.monotonic() - begin


def test_an_island_known_to_be_gone_is_not_waited_for():
    for message, seconds in run_ranks(give_up, ranks=2):
        assert "island 1 did not reach round-0" in message
        assert seconds < 20
