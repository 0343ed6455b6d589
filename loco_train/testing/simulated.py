"""A run by the simulator's model, AdamW and islands, from the weights and over the samples of the real trainer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from loco_train.config.schema import RunConfig
from loco_train.conversion.weight_map import weights_of
from loco_train.data.loader import BatchLoader, open_loader
from loco_train.outer import outer_method
from loco_train.simulation.lockstep import LockStep
from loco_train.simulation.matrices import WholeMatrices
from loco_train.simulation.stacked_adamw import StackedAdamW
from loco_train.simulation.stacked_llama import Shape, StackedLlama
from loco_train.training.progress import Progress, round_plan
from loco_train.training.schedule import learning_rate

# Parts of names in the stacked model, and what Hugging Face calls them.
_FOREIGN = {
    "embedding.word_embeddings": "model.embed_tokens",
    "decoder.layers": "model.layers",
    "self_attention.q": "self_attn.q_proj",
    "self_attention.k": "self_attn.k_proj",
    "self_attention.v": "self_attn.v_proj",
    "self_attention.o": "self_attn.o_proj",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "decoder.final_layernorm": "model.norm",
    "output_layer": "lm_head",
}


def foreign_name(name: str) -> str:
    """The Hugging Face name of a parameter of the stacked model."""
    for own, foreign in _FOREIGN.items():
        name = name.replace(own, foreign)
    return name


def stacked_shape(run: RunConfig) -> Shape:
    """The stacked model of a run: the trainer's, without the padding of its vocabulary."""
    model = run.model
    return Shape(
        model.layers,
        model.hidden_size,
        model.attention_heads,
        model.ffn_hidden_size,
        run.batch.sequence_length,
        model.vocab_size,
        model.key_value_heads,
        model.head_size,
        model.tied_embeddings,
    )


def stacked_weights(run: RunConfig, logical: Mapping[str, Tensor]) -> Tensor:
    """Whole logical parameters by name, as a row [n] of the stacked model's parameters, fp64."""
    foreign: dict[str, Tensor] = {}
    for weight in weights_of(run.model):
        foreign |= weight.split(logical[weight.name])
    names = stacked_shape(run).parameters
    return torch.cat([foreign[foreign_name(name)].flatten() for name in names]).double()


class SimulatedRun:
    """A run of all its islands, in fp64.

    start: parameters [n] of every island, as of `stacked_weights`.
    """

    def __init__(self, run: RunConfig, start: Tensor) -> None:
        self.run, self.shape = run, stacked_shape(run)
        self.each = [_of_island(run, island) for island in range(run.islands.count)]
        self.model = StackedLlama(self.shape)
        self.optimizer = _adamw(run, self.shape)
        self.loader: BatchLoader = open_loader(run)
        self.cursor = 0
        self.at_start = start

    def rounds(self) -> list[Tensor]:
        """Parameters [M, n] after each round."""
        if self.run.method.rule == "none":
            return self._inner_rounds()
        layout, method = self.shape.layout, self.run.method
        outer = outer_method(
            method,
            islands=self.run.islands.count,
            layout=layout,
            matrices=WholeMatrices(layout, method.aggregator.embeddings),
            layers=self.shape.layers,
            tied=self.shape.tied,
        )
        islands = LockStep.from_start(outer, self.at_start, islands=self.run.islands.count, seed=self.run.seed)
        found = []
        for number in range(self.run.rounds):
            islands.round(number, self._inner_steps)
            found.append(islands.parameters)
        return found

    def _inner_rounds(self) -> list[Tensor]:
        found = [self.at_start[None]]
        for number in range(self.run.rounds):
            found.append(self._inner_steps(number, found[-1]))
        return found[1:]

    def _inner_steps(self, number: int, starts: Tensor) -> Tensor:
        ends, plan = starts.clone(), round_plan(self.run, cursor=self.cursor)
        for island, own in enumerate(self.each):
            for step in range(own.inner_steps):
                at = Progress(round=number, steps_into_round=step, cursor=self.cursor)
                first = plan.first(island) + step * own.batch.island
                self._step(ends, island, first, tokens=at.tokens(own))
        self.cursor = plan.next_cursor
        return ends

    def _step(self, parameters: Tensor, island: int, first_ordinal: int, *, tokens: int) -> None:
        run, row = self.run, slice(island, island + 1)
        samples = self.loader.batch(first_ordinal, sequences=run.batch.island)
        _, gradient = self.model.gradients(parameters[row], samples[None])
        peak, total = run.optimizer.lr, run.total_tokens
        lr = learning_rate(run.schedule, peak=peak, tokens=tokens, total_tokens=total)
        self.optimizer.step(parameters, gradient, lr=lr, islands=row)


def _of_island(run: RunConfig, island: int) -> RunConfig:
    return run.model_copy(update={"islands": run.islands.model_copy(update={"index": island})})


def _adamw(run: RunConfig, shape: Shape) -> StackedAdamW:
    settings, layout = run.optimizer, shape.layout
    first, second = torch.zeros(2, run.islands.count, layout.numel, dtype=torch.float64)
    decayed = torch.zeros(layout.numel, dtype=torch.float64)
    for shard, begin, end in layout.ranges():
        decayed[begin:end] = float(len(shard.shape) > 1)
    return StackedAdamW(
        first,
        second,
        decayed,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        clip_grad_norm=settings.clip_grad_norm,
        eps=settings.eps,
    )
