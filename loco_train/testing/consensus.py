"""Islands' models put together in one process, and what they say there: the oracle of what islands measure together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loco_train.shards import Shard
from loco_train.testing.ranks import World
from loco_train.testing.tiny import tiny_run

if TYPE_CHECKING:
    from loco_train.training.loop import Trainer

Model = dict[str, Tensor]
Owned = list[tuple[Shard, Tensor]]


def owned_parameters(trainer: Trainer) -> Owned:
    """This rank's owned shards as they are, and their values, flat."""
    views = trainer.engine.views
    flat = torch.zeros(views.owned.numel)
    views.read(flat)
    return [(shard, flat[first:end].clone()) for shard, first, end in views.owned.ranges()]


def assembled(ranks: Sequence[Owned]) -> Model:
    """An island's whole parameters by name, from what its ranks own."""
    from loco_train.checkpoint.assemble import piece_view

    pieces: dict[Any, list[tuple[int, Tensor]]] = {}
    wholes: Model = {}
    for shard, values in (pair for rank in ranks for pair in rank):
        wholes.setdefault(shard.name, torch.full(shard.shape, torch.nan))
        pieces.setdefault((shard.name, shard.partition), []).append((shard.start, values))
    for (name, partition), parts in pieces.items():
        view = piece_view(wholes[name], partition)
        view.copy_(torch.cat([values for _, values in sorted(parts, key=lambda part: part[0])]).view(view.shape))
    return wholes


def mean_of(models: Sequence[Model]) -> Model:
    """In fp64."""
    return {name: torch.stack([model[name].double() for model in models]).mean(0) for name in models[0]}


def speak(world: World, settings: Mapping[str, Any], models: Sequence[Model], sequences: int) -> list[Tensor]:
    """Each model's logits [positions, vocabulary] on the first held-out sequences, by the plain decoder in fp32."""
    from loco_train.data.loader import open_heldout
    from loco_train.islands import join_island
    from loco_train.islands.logical import logical_of
    from loco_train.islands.model import Blueprint, Decoder, layer_specs

    run = tiny_run({k: v for k, v in settings.items() if not k.startswith("parallel")})
    decoder = Decoder(layer_specs(Blueprint.of(run, join_island(run, device=torch.device("cpu")))))
    (batch,) = open_heldout(run, sequences).micro_batches(
        0, sequences=sequences, micro=sequences, data_index=0, data_count=1
    )
    said = []
    with torch.no_grad():
        for model in models:
            for parameter in decoder.parameters():
                parameter.copy_(model[logical_of(parameter).name])
            logits = decoder(batch[:, :-1].contiguous())
            said.append(logits.flatten(0, 1)[:, : run.model.vocab_size].clone())
    return said


def js_tolerance(logits: Tensor) -> float:
    """How far two ways to compute the same models may move a JS distance between them.

    Logits differ by some hundred ulp of the largest (as against Hugging Face's), log probabilities by twice that: a.
    Two distributions whose logs differ by at most a have a divergence of at most a^2 / 8, and the distance is a metric:
    both models together move it by 2 a / sqrt(8 log 2) at most.
    """
    a = 2 * 2e-5 * float(logits.abs().max())
    return 2 * a / math.sqrt(8 * math.log(2))
