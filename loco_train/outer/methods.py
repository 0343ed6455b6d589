"""Settings turned into a method: each part by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from loco_train.blocks import block_of, select_blocks
from loco_train.config.method import AggregatorConfig, MethodConfig, MixConfig
from loco_train.errors import ConfigError
from loco_train.outer.aggregators import Aggregator, Dropped, Matrices, PerMatrix, PerStack, Unchanged
from loco_train.outer.iso import NewtonSchulz, clip_high, clip_low, flat_spectrum
from loco_train.outer.merging import IsoCTS, Ties, tsv_m
from loco_train.outer.method import MixingMethod, OuterMethod
from loco_train.outer.mixing import Mix, Ranges
from loco_train.outer.optimizer import MomentumSGD
from loco_train.outer.peers import (
    Everyone,
    ExponentialGraph,
    Graph,
    Nobody,
    Peers,
    RandomCycle,
    RandomPair,
    Ring,
)
from loco_train.outer.random_drop import RandomDrop
from loco_train.outer.rules import FromEnds, FromProgress, FromStarts, Rule
from loco_train.outer.streaming import StreamingMethod, fragment_ranges
from loco_train.outer.weights import Weights
from loco_train.shards import FlatLayout

RULES: dict[str, Rule] = {"progress": FromProgress(), "ends": FromEnds(), "starts": FromStarts()}


def outer_method(
    method: MethodConfig, *, islands: int, layout: FlatLayout, matrices: Matrices, layers: int, tied: bool
) -> OuterMethod:
    """The method that the settings compose; their rule is not `none`.

    layout: of the flat buffers. matrices: in them. layers, tied: of the model, for the names of its blocks.

    Raises:
        ConfigError: a graph's file is missing or unsound.
    """
    lr, momentum = method.outer_for(islands)
    optimizer = MomentumSGD(kind=method.outer.kind, lr=lr, momentum=momentum)
    if method.rule == "streaming":
        ranges = fragment_ranges(layout, fragments=method.streaming.fragments)
        fragments = tuple(Mix(peers(method.mix1), "mix1", part) for part in ranges)
        return StreamingMethod(fragments, optimizer, kept=method.streaming.kept)
    return MixingMethod(
        rule=RULES[method.rule],
        mix1=Mix(peers(method.mix1), "mix1"),
        mix2=Mix(peers(method.mix2), "mix2", _ranges(method.mix2, layout, layers=layers, tied=tied)),
        aggregator=aggregator(method.aggregator, matrices, layout),
        optimizer=optimizer,
        islands=islands,
        mixes_momentum=method.mix1_momentum,
        shares=_shares(method, islands),
    )


def with_mix2(method: OuterMethod, mix: MixConfig, *, layout: FlatLayout, layers: int, tied: bool) -> OuterMethod:
    """The method, made by `outer_method` of the same layout and model, with another mix2."""
    assert isinstance(method, MixingMethod), "settings refuse it for others"
    # The peers that it has are kept: an island that read a graph's file anew could find another graph than the others.
    part = peers(mix) if method.mix2.is_nobody else method.mix2.peers
    return replace(method, mix2=Mix(part, "mix2", _ranges(mix, layout, layers=layers, tied=tied)))


def peers(mix: MixConfig) -> Peers:
    """The peers that the settings name."""
    match mix.peers:
        case "nobody":
            return Nobody()
        case "all":
            return Everyone()
        case "ring":
            return Ring(mix.self_weight)
        case "exponential" | "rotating-exponential":
            return ExponentialGraph(mix.peers != "exponential", mix.self_weight)
        case "random-pair":
            return RandomPair(None if mix.links is None else frozenset(map(frozenset, mix.links)))
        case "random-cycle":
            return RandomCycle(mix.self_weight)
        case "graph":
            return Graph(read_graph(Path(mix.graph or "")))


def read_graph(path: Path) -> Weights:
    """The weights of a YAML file `weights: [[...], ...]`, one row for each island.

    Raises:
        ConfigError: no such file, no matrix, or one that no method may mix by.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        matrix = [[float(weight) for weight in row] for row in document["weights"]]
    except FileNotFoundError:
        raise ConfigError(
            f"there is no graph file {path}", fix="give the file's path as mix1.graph or mix2.graph"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} holds no graph", got=str(error).splitlines()[0], allowed="weights: a list of rows of numbers"
        ) from None
    return Weights.checked(matrix, source=str(path))


def aggregator(settings: AggregatorConfig, matrices: Matrices, layout: FlatLayout) -> Aggregator:
    """The aggregator that the settings name."""
    match settings.kind:
        case "mean":
            return Unchanged()
        case "iso":
            return PerMatrix(matrices, flat_spectrum)
        case "iso-fast":
            return PerMatrix(matrices, NewtonSchulz(settings.scale))
        case "clip-high":
            return PerMatrix(matrices, clip_high)
        case "clip-low":
            return PerMatrix(matrices, clip_low)
        case "dare":
            return Dropped(RandomDrop(layout, settings.dropped))
        case "ties":
            return PerStack(matrices, Ties(settings.trimmed))
        case "tsv-m":
            return PerStack(matrices, tsv_m)
        case "iso-cts":
            return PerStack(matrices, IsoCTS(settings.common))


def _shares(method: MethodConfig, islands: int) -> tuple[float, ...] | None:
    """What each island's progress counts, by its inner steps: all train on as many tokens in one."""
    if method.weighting == "islands":
        return None
    steps = [method.steps_of(island) for island in range(islands)]
    return tuple(each * islands / sum(steps) for each in steps)


def _ranges(mix: MixConfig, layout: FlatLayout, *, layers: int, tied: bool) -> Ranges | None:
    if mix.blocks is None or mix.blocks == "measured":  # until it has been measured, in the first round
        return None
    chosen = select_blocks(mix.blocks, layers=layers, tied=tied)
    return layout.joined(lambda shard: block_of(shard.name) in chosen)
