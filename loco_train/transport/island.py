"""One answer for all ranks of an island, over its default group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from loco_train.errors import LocoError

T = TypeVar("T")


def on_leader(function: Callable[[], T]) -> T:
    """What `function` gives on rank 0, on every rank of the island; a LocoError there is raised on every rank.

    Without it rank 0 would leave with an error while the others wait for it in their next collective.
    """
    answer: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            answer[0] = function()
        except LocoError as error:
            answer[0] = error
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], LocoError):
        raise answer[0]
    return answer[0]  # type: ignore[no-any-return]


def from_every_rank(value: T) -> list[T]:
    """The value of each rank of the island."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
