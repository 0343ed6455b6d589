"""One decision for all islands: each island's verdict on the store, read by every island."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed import Store

from loco_train.errors import DeadlineExceeded, PeerLost
from loco_train.transport.island import agree_in_island, on_leader
from loco_train.transport.store import wait_for

OK = "ok"


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
        self._last_key: str | None = None

    def decide(self, key: str, verdict: str) -> dict[int, str]:
        """The verdicts other than "ok", by island; empty: all ranks of all islands said "ok".

        An island whose own verdict is bad gets only that: it has no need to wait for islands that may be dead.
        Collective over the island.

        Raises:
            DeadlineExceeded: an island did not vote within the deadline. TransportError: the store is gone. Both on
                every rank of this island.
        """
        agreed = agree_in_island(verdict, good=OK)
        return on_leader(lambda: self._vote(key, agreed))

    def _vote(self, key: str, verdict: str) -> dict[int, str]:
        mine = {self._index: verdict} if verdict != OK else {}
        if self._store is None:
            return mine
        self._store.set(self._key(key, self._index), verdict)
        if mine:
            return mine
        keys = [self._key(key, island) for island in range(self._count)]
        missing = wait_for(self._store, keys, timeout_seconds=self._timeout_seconds, hopeless=self._hopeless)
        if missing:
            absent = ", ".join(str(island) for island, name in enumerate(keys) if name in missing)
            if self._hopeless():
                raise PeerLost(
                    f"island {absent} did not reach {key}, and a connection to the other islands is closed",
                    fix="look at its log, then start the run again: it resumes from the last common checkpoint",
                )
            raise DeadlineExceeded(
                f"island {absent} did not reach {key} within {self._timeout_seconds:g} s",
                fix="look at its log; if it is only slow, raise network.exchange_timeout",
            )
        verdicts = {island: self._store.get(name).decode() for island, name in enumerate(keys)}
        self._forget_previous(key)
        return {island: verdict for island, verdict in verdicts.items() if verdict != OK}

    def _forget_previous(self, key: str) -> None:
        # Everyone has voted for `key`, so everyone has read the votes before it: the store must not grow for ever.
        if self._last_key is not None and self._store is not None:
            self._store.delete_key(self._key(self._last_key, self._index))
        self._last_key = key

    def _key(self, key: str, island: int) -> str:
        return f"{self._prefix}/ballot/{key}/{island}"
