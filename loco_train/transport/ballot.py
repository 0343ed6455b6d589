"""One decision for all islands: each island's verdict on the store, read by every island."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence

from torch.distributed import Store

from loco_train.errors import DeadlineExceeded, PeerLost, TransportError
from loco_train.transport.island import from_every_rank, on_leader
from loco_train.transport.store import wait_for

OK, DIFFERS = "ok", "differs"
_VOTES_KEPT = 256


class Ballot:
    """Decisions of a run's islands, each under a key of its own.

    The leader of an island (rank 0) votes for it and reads the others' votes.
    """

    def __init__(
        self,
        store: Store | None,
        *,
        prefix: str,
        index: int,
        count: int,
        timeout_seconds: float,
        hopeless: Callable[[], bool] = lambda: False,
    ) -> None:
        """store: None for one island. prefix: of this run on the store. timeout_seconds: for the other islands.
        hopeless: whether an island is known to be gone, which ends the wait for votes before the deadline."""
        self._store = store
        self._prefix = prefix
        self._index = index
        self._count = count
        self._timeout_seconds = timeout_seconds
        self._hopeless = hopeless
        self._keys: deque[str] = deque()

    def decide(
        self, key: str, verdict: str, *, voters: Sequence[int] | None = None, digest: int | None = None
    ) -> dict[int, str]:
        """The verdicts other than "ok", by island; empty: all ranks of all voters said "ok".

        voters: the islands whose votes are waited for, this one among them; None: all. digest: of what this rank has
        and its counterparts must have too; an island where it differs is told as "differs".

        An island whose own verdict is bad gets only that: it has no need to wait for islands that may be dead.
        Collective over the island.

        Raises:
            DeadlineExceeded: an island did not vote within the deadline. TransportError: the store is gone. Both on
                every rank of this island.
        """
        said = from_every_rank((verdict, digest))
        agreed = next((bad for bad, _ in said if bad != OK), OK)
        whole = "-" if digest is None else hashlib.sha256(repr([each for _, each in said]).encode()).hexdigest()
        everyone = range(self._count) if voters is None else voters
        return on_leader(lambda: self._vote_or_tell(key, agreed, whole, everyone))

    def _vote_or_tell(self, key: str, verdict: str, digest: str, voters: Sequence[int]) -> dict[int, str]:
        try:
            return self._vote(key, verdict, digest, voters)
        except RuntimeError as error:  # of the store; as it is it would end rank 0 and leave the other ranks waiting
            raise TransportError("the rendezvous is gone", got=str(error).splitlines()[0]) from error

    def _vote(self, key: str, verdict: str, digest: str, voters: Sequence[int]) -> dict[int, str]:
        mine = {self._index: verdict} if verdict != OK else {}
        if self._store is None:
            return mine
        self._store.set(self._key(key, self._index), f"{verdict} {digest}")
        if mine:
            return mine
        self._forget_old(key)
        keys = {island: self._key(key, island) for island in voters}
        missing = wait_for(
            self._store, list(keys.values()), timeout_seconds=self._timeout_seconds, hopeless=self._hopeless
        )
        if missing and self._settle(key, voters, "given up") == "taken":
            return {}
        if missing:
            absent = ", ".join(str(island) for island, name in keys.items() if name in missing)
            if self._hopeless():
                raise PeerLost(
                    f"island {absent} did not reach {key}, and a connection to the other islands is closed",
                    fix="look at its log, then start the run again: it resumes from the last common checkpoint",
                )
            raise DeadlineExceeded(
                f"island {absent} did not reach {key} within {self._timeout_seconds:g} s",
                fix="look at its log; if it is only slow, raise network.exchange_timeout",
            )
        votes = {island: self._store.get(name).decode().split() for island, name in keys.items()}
        verdicts = {i: DIFFERS if said == OK and theirs != digest else said for i, (said, theirs) in votes.items()}
        bad = {island: verdict for island, verdict in verdicts.items() if verdict != OK}
        if not bad and self._settle(key, voters, "taken") == "given up":
            raise DeadlineExceeded(
                f"another island had given up waiting at {key} when this one reached it",
                fix="look at its log; if this one is only slow, raise network.exchange_timeout",
            )
        return bad

    def _settle(self, key: str, voters: Sequence[int], wish: str) -> str:
        """What becomes of the decision: the first wish of any voter.

        An island that no longer waits for a late vote, and the late voter that then finds every vote, would otherwise
        decide differently.
        """
        assert self._store is not None
        name = f"{self._prefix}/ballot/{key}/settled/{'-'.join(map(str, sorted(voters)))}"
        self._keys.append(name)
        return self._store.compare_set(name, "", wish).decode()

    def _forget_old(self, key: str) -> None:
        # The store must not grow for ever. Islands that wait only for their peers may be some rounds apart: votes stay
        # for many rounds longer than any deadline lets them be.
        self._keys.append(self._key(key, self._index))
        while len(self._keys) > _VOTES_KEPT and self._store is not None:
            self._store.delete_key(self._keys.popleft())

    def _key(self, key: str, island: int) -> str:
        return f"{self._prefix}/ballot/{key}/{island}"
