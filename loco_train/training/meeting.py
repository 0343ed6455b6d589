"""Where islands meet before the first step: do they fit each other, and did all of them get ready?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import Store

from loco_train import __version__
from loco_train.config.compare import shared_settings
from loco_train.config.schema import RunConfig
from loco_train.data.loader import BatchLoader
from loco_train.errors import FailedElsewhere, LocoError
from loco_train.islands import ParameterViews
from loco_train.transport.handshake import agree_on_start, compare_documents, share, tensor_digests
from loco_train.transport.island import on_leader

T = TypeVar("T")


@dataclass(frozen=True)
class Meeting:
    """What a rank needs to meet its counterparts: the store (None for one island) and this start's prefix on it."""

    config: RunConfig
    store: Store | None
    run_id: str
    prefix: str

    @staticmethod
    def arrange(config: RunConfig, store: Store | None, run_id: str) -> Meeting:
        """Wait until all islands are there. Collective over the island.

        Raises:
            DeadlineExceeded, TransportError: an island did not come, or the store is gone.
            IslandMismatch: another process came as the same island.
        """
        islands = config.islands
        start = "alone"
        if store is not None:
            start = on_leader(
                lambda: agree_on_start(
                    store,
                    f"{run_id}/start",
                    index=islands.index,
                    count=islands.count,
                    timeout_seconds=config.network.rendezvous_timeout,
                    on_waiting=lambda absent: _tell_waiting(config, absent),
                )
            )
        return Meeting(config, store, run_id, f"{run_id}/{start}")

    def compare(self, name: str, document: Callable[[], dict[str, Any]]) -> None:
        """Refuse to go on unless this document is the same on all islands; collective over the island."""
        store = self.store
        if store is not None:
            mine = document()
            on_leader(lambda: compare_documents(store, f"{self.prefix}/{name}", document=mine, **self._place))

    def all_succeed(self, name: str, work: Callable[[], T]) -> T:
        """What `work` gives, once it succeeded on all islands. Collective over the islands.

        An island that refuses to start would otherwise leave the others training towards an exchange without it.

        Raises:
            LocoError: this island's own, or one that names the islands where `work` failed.
        """
        failure: LocoError | None = None
        try:
            result = work()
        except LocoError as error:
            failure = error
        problem = failure.problem if failure else None
        told = self.share(name, {"problem": problem})
        if failure:
            raise failure
        failed = [f"island {island}: {each['problem']}" for island, each in enumerate(told) if each["problem"]]
        if failed:
            raise FailedElsewhere(f"{name} failed on another island", got="; ".join(failed), fix="see its log")
        return result

    def announce_saved(self, round: int) -> int | None:
        """Tell the other islands that this one has a checkpoint of `round` (-1: none yet). For one rank of the island.

        Returns:
            The newest round that all islands are known to have saved; -1 where nothing is known; None for one island.
        """
        if self.store is None:
            return None
        keys = [f"{self.prefix}/saved/{island}" for island in range(self.config.islands.count)]
        try:
            self.store.set(keys[self.config.islands.index], str(round))
            if self.store.check(keys):
                return min(int(self.store.get(key)) for key in keys)
        except RuntimeError:
            # The store is gone, which the next exchange will say. The checkpoint is saved all the same.
            pass
        return -1

    def share(self, name: str, document: dict[str, Any]) -> list[dict[str, Any]]:
        """Every island's document, by island. Collective over the island."""
        store = self.store
        if store is None:
            return [document]
        return on_leader(lambda: share(store, f"{self.prefix}/{name}", document=document, **self._place))

    @property
    def _place(self) -> dict[str, Any]:
        islands = self.config.islands
        timeout = self.config.network.rendezvous_timeout
        return {"index": islands.index, "count": islands.count, "timeout_seconds": timeout}


def _tell_waiting(config: RunConfig, absent: Sequence[int]) -> None:
    """A silent start looks like a hang; one who starts islands by hand sees whom it waits for."""
    islands = config.islands
    print(
        f"island {islands.index} waits at {islands.rendezvous} for island {', '.join(map(str, absent))} of "
        f"{islands.count}, at most {config.network.rendezvous_timeout:g} s (network.rendezvous_timeout)",
        file=sys.stderr,
        flush=True,
    )


def compare_islands(meeting: Meeting, *, loader: BatchLoader, views: ParameterViews) -> None:
    """Before anything is exchanged: same code, settings, tokenizer, data, and the same shards on every position."""
    meeting.compare(
        "settings and data",
        lambda: {
            "loco_train": __version__,
            "settings": shared_settings(meeting.config.model_dump(mode="json")),
            "data": loader.fingerprint(),
        },
    )
    meeting.compare("parameters", lambda: {"rank": _gather([shard.to_json() for shard in views.shards])})


def compare_weights(meeting: Meeting, *, views: ParameterViews) -> None:
    """Islands that start from different weights would be averaged into one that is none of them."""
    owned = {shard.name for shard, _, _ in views.owned.ranges()}
    masters = {key.removeprefix("master/"): t for key, t in views.state().items() if key.startswith("master/")}
    meeting.compare(
        "initial weights",
        lambda: {"rank": _gather(tensor_digests((name, masters[name]) for name in masters if name in owned))},
    )


def _gather(mine: Any) -> dict[str, Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {str(rank): each for rank, each in enumerate(everyone)}
