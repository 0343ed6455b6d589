"""Do the islands fit each other? Their documents are compared before the first step, and what differs is named."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
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
        absent = ", ".join(key.rpartition("/")[2] for key in missing)
        raise DeadlineExceeded(
            f"island {absent} of {count} did not come to the rendezvous within {timeout_seconds:g} s",
            fix="start it, or look at its log; raise network.rendezvous_timeout if islands start far apart",
        )
    return [json.loads(zlib.decompress(store.get(key))) for key in keys]


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
