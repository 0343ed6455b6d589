"""Undirected graphs over islands. No torch here: settings are checked by it on a login node."""

from __future__ import annotations

from collections.abc import Callable, Collection


def reachable(first: int, neighbours: Callable[[int], Collection[int]]) -> set[int]:
    """The islands that a way leads to from the first one, itself among them."""
    reached, waiting = {first}, [first]
    while waiting:
        new = set(neighbours(waiting.pop())) - reached
        reached |= new
        waiting += new
    return reached
