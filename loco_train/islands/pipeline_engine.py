"""The engine with a pipeline: DeepSpeed's PipelineModule and PipelineEngine, ZeRO 1 over data parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.schedule import ReduceTiedGrads
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor
from torch.optim import Optimizer

from loco_train.config.schema import RunConfig
from loco_train.islands.backends import quiet_build
from loco_train.islands.engine import StepResult, deepspeed_settings
from loco_train.islands.initial import initial_values
from loco_train.islands.inner_optimizer import build_inner_optimizer, set_learning_rate
from loco_train.islands.layout import Layout
from loco_train.islands.logits import whole_logits
from loco_train.islands.masters import masters_of
from loco_train.islands.model import Blueprint, DecoderBlock, layer_specs, mean_loss
from loco_train.islands.views import ParameterViews


class PipelinedEngine:
    """See `Engine`. The schedule is 1F1B over the micro-batches of a step."""

    def __init__(
        self,
        layout: Layout,
        views: ParameterViews,
        engine: Any,
        optimizer: Optimizer,
        *,
        accumulation_steps: int,
        vocabulary: int,
    ) -> None:
        self.layout = layout
        self.views = views
        self._engine = engine
        self._optimizer = optimizer
        self._accumulation_steps = accumulation_steps
        self._vocabulary = vocabulary
        self._shape: torch.Size | None = None

    @staticmethod
    def build(config: RunConfig, layout: Layout, *, device: torch.device) -> PipelinedEngine:
        with quiet_build():
            model = _pipeline(config, layout)
            parameters = list(model.parameters())
            optimizer = build_inner_optimizer(config.optimizer, parameters, device=device, zero_stage=1)
            engine, *_ = deepspeed.initialize(
                model=model,
                optimizer=optimizer,
                config=deepspeed_settings(config, device=device),
                dist_init_required=False,
            )
        if config.model.tied_embeddings:
            _keep_tied_copies_equal(engine, layout)
        views = ParameterViews(
            masters_of(engine.optimizer, parameters), layout, device=device, tied_numel=_tied_numel(config)
        )
        views.fill(initial_values(config.model, seed=config.seed))
        return PipelinedEngine(
            layout,
            views,
            engine,
            optimizer,
            accumulation_steps=config.accumulation_steps,
            vocabulary=config.model.vocab_size,
        )

    def step(self, micro_batches: Sequence[Tensor], *, lr: float) -> StepResult:
        if len(micro_batches) != self._accumulation_steps:
            raise ValueError(f"{len(micro_batches)} micro-batches, but {self._accumulation_steps} make a step")
        set_learning_rate(self._optimizer, lr)
        self._expect(micro_batches[0].shape)
        loss = self._engine.train_batch(_examples(micro_batches))
        return StepResult(float(loss), float(self._engine.get_global_grad_norm()))

    def evaluate(self, micro_batches: Sequence[Tensor]) -> float:
        self._expect(micro_batches[0].shape)
        loss = self._engine.eval_batch(_examples(micro_batches), num_micro_batches=len(micro_batches))
        return float(loss)

    def logits(self, micro_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        self._expect(micro_batches[0].shape)
        for micro_batch in micro_batches:
            kept: list[Tensor] = []
            with self._loss_replaced(_keep_logits(kept)):
                self._engine.eval_batch(_examples([micro_batch]), num_micro_batches=1)
            for part in kept:
                yield from whole_logits(part, self.layout, vocabulary=self._vocabulary)

    @contextmanager
    def _loss_replaced(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
        # eval_batch can return logits, but adds them to a sum that the losses of other evaluations go into.
        module = self._engine.module
        before, module.loss_fn = module.loss_fn, loss
        try:
            yield
        finally:
            module.loss_fn = before

    def close(self) -> None:
        with quiet_build():
            self._engine.destroy()

    def _expect(self, shape: torch.Size) -> None:
        # Stages allocate their receive buffers for the shape of the first micro-batch they see.
        if self._shape != shape:
            self._engine.reset_activation_shape()
            self._shape = shape


@torch.no_grad()  # it broadcasts tied weights, which autograd would record
def _pipeline(config: RunConfig, layout: Layout) -> Any:
    return PipelineModule(
        layer_specs(Blueprint.of(config, layout)),
        topology=PipeModelDataParallelTopology(num_pp=layout.pipeline, num_mp=layout.tensor, num_dp=layout.data),
        loss_fn=mean_loss,
        partition_method=f"type:{DecoderBlock.__name__}",  # equally many blocks for each stage
    )


def _keep_tied_copies_equal(engine: Any, layout: Layout) -> None:
    """Sum a tied weight's gradient over both stages and all data ranks in one reduction, the same on both.

    DeepSpeed adds the two stages' gradients and then reduces each stage's over its data ranks, in an order of addition
    that depends on where the gradient lies in a buffer: with three data ranks the copies went apart in the last bit.
    What is left for that reduction here is a sum of equal values, which no order changes.
    """
    groups = {index: dist.new_group(_end_stage_ranks(layout, index)) for index in range(layout.tensor)}
    group = groups[layout.tensor_index]

    def reduce_tied_gradients(self: Any) -> None:
        for weight, _ in self.module.get_tied_weights_and_groups():
            gradient = weight._hp_grad if self.using_bf16_optimizer else weight.grad
            dist.all_reduce(gradient, group=group)
            gradient.div_(layout.data)

    engine._INSTRUCTION_MAP = engine._INSTRUCTION_MAP | {ReduceTiedGrads: reduce_tied_gradients}


def _end_stage_ranks(layout: Layout, tensor_index: int) -> list[int]:
    ranks = (replace(layout, rank=rank) for rank in range(layout.tensor * layout.data * layout.pipeline))
    return [r.rank for r in ranks if r.tensor_index == tensor_index and (r.is_first_stage or r.is_last_stage)]


def _examples(micro_batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and labels; the first stage takes the tokens and the last one the labels."""
    return iter([(m[:, :-1].contiguous(), m[:, 1:].contiguous()) for m in micro_batches])


def _keep_logits(kept: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        kept.append(logits)
        return torch.zeros((), device=logits.device)

    return loss


def _tied_numel(config: RunConfig) -> int | None:
    model = config.model
    return model.padded_vocab_size * model.hidden_size // config.parallel.tensor if model.tied_embeddings else None
