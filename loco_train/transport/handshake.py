"""Do the islands fit each other? Their documents are compared before the first step, and what differs is named."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store

from loco_train.errors import DeadlineExceeded, IslandMismatch
from loco_train.transport.store import wait_for

Document = Mapping[str, Any]
_ABSENT = "(absent)"
_SHOWN_DIFFERENCES = 20
_SHOWN_CHARACTERS = 120
_LISTEN_SECONDS = 0.05
_TELL_WAITING_SECONDS = 5.0


def share(
    store: Store, name: str, *, index: int, count: int, document: Document, timeout_seconds: float
) -> list[dict[str, Any]]:
    """Every island's document (JSON values) under `name`, by island. For one rank of each island.

    Raises:
        DeadlineExceeded: naming the islands that did not come. TransportError: the store is gone.
    """
    keys = [f"{name}/{island}" for island in range(count)]
    store.set(keys[index], zlib.compress(json.dumps(document).encode()))  # type: ignore[arg-type]
    missing = wait_for(store, keys, timeout_seconds=timeout_seconds)
    if missing:
        absent = [island for island, key in enumerate(keys) if key in missing]
        raise _absent(absent, count=count, timeout_seconds=timeout_seconds)
    return [json.loads(zlib.decompress(store.get(key))) for key in keys]


def agree_on_start(
    store: Store,
    name: str,
    *,
    index: int,
    count: int,
    timeout_seconds: float,
    on_waiting: Callable[[Sequence[int]], None] = lambda absent: None,
) -> str:
    """A word for this start of the run, the same on every island and never used before. For one rank of each island.

    A store outlives the islands: what an earlier start left under a name would be taken for this one's, an old list of
    checkpoints, or the address of a rank that is gone. So every island says a new word and repeats those that it has
    heard; they are one start once all have heard the same words.

    on_waiting: told once which islands are still missing after a few seconds.

    Raises:
        IslandMismatch: another process says words as the same island.
        DeadlineExceeded: naming the islands that did not come. TransportError: the store is gone.
    """
    word = uuid.uuid4().hex
    deadline = time.monotonic() + timeout_seconds
    said, heard = ([f"{name}/{what}/{island}" for island in range(count)] for what in ("said", "heard"))
    store.set(said[index], word)

    def replaced() -> bool:
        return store.get(said[index]).decode() != word

    missing = wait_for(store, said, timeout_seconds=min(_TELL_WAITING_SECONDS, timeout_seconds), hopeless=replaced)
    if missing and not replaced():
        on_waiting([island for island in range(count) if said[island] in missing])
    while True:
        remaining = deadline - time.monotonic()
        missing = wait_for(store, said, timeout_seconds=remaining, hopeless=replaced)
        if replaced():
            raise _same_island(index)
        words = [] if missing else [store.get(key).decode() for key in said]
        store.set(heard[index], " ".join(words))
        if not missing and not wait_for(store, heard, timeout_seconds=remaining):
            everyone = {store.get(key).decode() for key in heard}
            if everyone == {" ".join(words)}:
                return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
        if time.monotonic() > deadline:
            others = [island for island in range(count) if island != index]
            silent = [i for i in others if said[i] in missing or word not in _heard(store, heard[i])]
            raise _absent(silent, count=count, timeout_seconds=timeout_seconds)
        time.sleep(_LISTEN_SECONDS)


def _same_island(index: int) -> IslandMismatch:
    return IslandMismatch(
        f"another process has come to the rendezvous as island {index}",
        got=f"islands.index={index} twice; this one ends, the later one goes on",
        allowed="an index of its own for each island, from 0 on",
        fix="see that no earlier start of this island is left running, and that each island has its own islands.index",
    )


def _heard(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _absent(islands: Sequence[int], *, count: int, timeout_seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"island {', '.join(map(str, islands))} of {count} did not come to the rendezvous within {timeout_seconds:g} s",
        fix="start it, or look at its log; raise network.rendezvous_timeout if islands start far apart",
    )


def compare_documents(
    store: Store, name: str, *, index: int, count: int, document: Document, timeout_seconds: float
) -> None:
    """Refuse to go on unless all islands gave the same document. For one rank of each island.

    Raises:
        IslandMismatch: on every island, naming each dotted key that differs, with the values of both sides.
        DeadlineExceeded, TransportError: as `share`.
    """
    documents = share(store, name, index=index, count=count, document=document, timeout_seconds=timeout_seconds)
    lines = differences(documents)
    if lines:
        more = f"\n    and {len(lines) - _SHOWN_DIFFERENCES} more" if len(lines) > _SHOWN_DIFFERENCES else ""
        raise IslandMismatch(
            f"the islands do not fit each other ({name.rpartition('/')[2]}):\n    "
            + "\n    ".join(lines[:_SHOWN_DIFFERENCES])
            + more,
            fix="start all islands with the same settings, data, tokenizer and code",
        )


def differences(documents: list[dict[str, Any]]) -> list[str]:
    """One line for each key and island whose value is not island 0's."""
    flat = [dict(_flatten(document)) for document in documents]
    lines = []
    for key in sorted({key for each in flat for key in each}):
        reference = flat[0].get(key, _ABSENT)
        odd = {island: each.get(key, _ABSENT) for island, each in enumerate(flat)}
        lines += [
            f"{key}: {_short(reference)} at island 0, {_short(value)} at island {island}"
            for island, value in odd.items()
            if value != reference
        ]
    return lines


def tensor_digests(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """sha256 of each tensor's bytes, by name, for comparing weights parameter by parameter."""
    digests = {}
    for name, tensor in tensors:
        raw = tensor.detach().contiguous().view(torch.uint8).cpu().numpy()
        digests[name] = hashlib.sha256(raw.data).hexdigest()
    return digests


def _flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{prefix}[{index}]")
    else:
        yield prefix, value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
