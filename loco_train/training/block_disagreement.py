"""What the disagreement on one block alone changes in what the model says.

The block is taken from the island and all the others from the islands' mean; the JS distance of that model from the
mean is what leaving the block out of a mix costs (the subset of Factored Gossip, arXiv 2606.22768).
"""

from __future__ import annotations

from collections.abc import Sequence

from loco_train.blocks import block_of
from loco_train.islands import ParameterViews
from loco_train.outer.health import Speech
from loco_train.training.listener import Listener
from loco_train.training.outer_step import OwnAndMean


def js_of_blocks(
    blocks: Sequence[str],
    ends: OwnAndMean,
    consensus: Sequence[Speech],
    *,
    listener: Listener,
    views: ParameterViews,
) -> list[float]:
    """The JS distance in [0, 1] of each block, one forward pass for each; the same on every rank of the island.

    consensus: what the listener heard of the mean. Leaves other parameters in the engine: for inside
    `ends.mean_inside`. Collective over the island.
    """
    return [_js_of(block, ends, consensus, listener, views) for block in blocks]


def _js_of(
    block: str, ends: OwnAndMean, consensus: Sequence[Speech], listener: Listener, views: ParameterViews
) -> float:
    mixed = ends.mean.clone()
    for shard, first, end in views.owned.ranges():
        if block_of(shard.name) == block:
            mixed[first:end] = ends.own[first:end]
    views.write(mixed)
    return listener.distance(consensus)
