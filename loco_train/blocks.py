"""Blocks of a model by name: what a subset of mix2 is made of, and what consensus is measured by.

A model has the blocks embedding, layers.0.attention, layers.0.mlp, ..., final-norm and, unless it is tied to the
embedding, head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SELECTOR = re.compile(r"layers\.(?P<first>\d+)(-(?P<last>\d+))?(\.(?P<part>attention|mlp))?")
_PARTS = ("attention", "mlp")


def block_names(*, layers: int, tied: bool) -> tuple[str, ...]:
    """Every block of a model, in its order."""
    inner = [f"layers.{layer}.{part}" for layer in range(layers) for part in _PARTS]
    return ("embedding", *inner, "final-norm", *(() if tied else ("head",)))


def block_of(parameter: str) -> str:
    """The block of a logical parameter, by its Megatron-core name; a norm belongs to what it feeds."""
    parts = parameter.split(".")
    if parts[0] == "embedding":
        return "embedding"
    if parts[0] == "output_layer":
        return "head"
    if parts[1] == "final_layernorm":
        return "final-norm"
    part = "mlp" if parts[3] in ("mlp", "pre_mlp_layernorm") else "attention"
    return f"layers.{parts[2]}.{part}"


def select_blocks(selectors: Iterable[str], *, layers: int, tied: bool) -> tuple[str, ...]:
    """The blocks that selectors name: a block, layers.3, layers.0-1 or layers.0-1.mlp. A tied head is the embedding.

    Raises:
        ValueError: a selector names a block that the model does not have.
    """
    present = block_names(layers=layers, tied=tied)
    chosen: set[str] = set()
    for selector in selectors:
        named = ["embedding"] if tied and selector == "head" else _expand(selector)
        missing = [name for name in named if name not in present]
        if missing or not named:
            raise ValueError(
                f"{selector} is no block of this model: it has embedding, layers.0 to layers.{layers - 1} "
                f"(or layers.0-{layers - 1}.attention, .mlp), final-norm, head"
            )
        chosen |= set(named)
    return tuple(name for name in present if name in chosen)


def _expand(selector: str) -> list[str]:
    match = _SELECTOR.fullmatch(selector)
    if match is None:
        return [selector]
    first = int(match["first"])
    last = first if match["last"] is None else int(match["last"])
    parts = _PARTS if match["part"] is None else (match["part"],)
    return [f"layers.{layer}.{part}" for layer in range(first, last + 1) for part in parts]
