"""The engine without a pipeline: DeepSpeedEngine with ZeRO 1, 2 or 3 over data parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor
from torch.optim import Optimizer

from loco_train.config.schema import RunConfig
from loco_train.islands.backends import quiet_build
from loco_train.islands.engine import StepResult, deepspeed_settings
from loco_train.islands.initial import initial_values
from loco_train.islands.inner_optimizer import build_inner_optimizer, set_learning_rate
from loco_train.islands.layout import Layout, ModelParallelUnit
from loco_train.islands.logits import whole_logits
from loco_train.islands.masters import masters_of
from loco_train.islands.model import Blueprint, Decoder, layer_specs
from loco_train.islands.views import ParameterViews


class ZeroEngine:
    """See `Engine`."""

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

    @staticmethod
    def build(config: RunConfig, layout: Layout, *, device: torch.device) -> ZeroEngine:
        settings = deepspeed_settings(config, device=device)
        with quiet_build():
            with _sharded_construction(config, settings):
                model = Decoder(layer_specs(Blueprint.of(config, layout)))
            parameters = list(model.parameters())
            optimizer = build_inner_optimizer(
                config.optimizer, parameters, device=device, zero_stage=config.parallel.zero_stage
            )
            engine, *_ = deepspeed.initialize(
                model=model,
                optimizer=optimizer,
                config=settings,
                mpu=ModelParallelUnit(),
                dist_init_required=False,
            )
        views = ParameterViews(masters_of(engine.optimizer, parameters), layout, device=device)
        views.fill(initial_values(config.model, seed=config.seed))
        return ZeroEngine(
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
        self._engine.train()
        losses = []
        for micro_batch in micro_batches:
            loss = self._loss(micro_batch)
            self._engine.backward(loss)
            self._engine.step()
            losses.append(loss.detach())
        return StepResult(self._island_mean(losses), float(self._engine.get_global_grad_norm()))

    def evaluate(self, micro_batches: Sequence[Tensor]) -> float:
        self._engine.eval()
        with torch.no_grad():
            return self._island_mean([self._loss(micro_batch) for micro_batch in micro_batches])

    def logits(self, micro_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        self._engine.eval()
        for micro_batch in micro_batches:
            with torch.no_grad():
                part = self._engine(micro_batch[:, :-1].contiguous().to(self._engine.device))
            yield from whole_logits(part, self.layout, vocabulary=self._vocabulary)

    def close(self) -> None:
        with quiet_build():
            self._engine.destroy()

    def _loss(self, micro_batch: Tensor) -> Tensor:
        tokens = micro_batch.to(self._engine.device, non_blocking=True)
        loss: Tensor = self._engine(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        return loss

    def _island_mean(self, losses: list[Tensor]) -> float:
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean, group=parallel_state.get_data_parallel_group())
        return float(mean) / self.layout.data


def _sharded_construction(config: RunConfig, settings: dict[str, Any]) -> AbstractContextManager[Any]:
    """Under ZeRO 3 each layer is cut as soon as it is built: no rank ever holds the whole model."""
    if config.parallel.zero_stage < 3:
        return nullcontext()
    context: AbstractContextManager[Any] = deepspeed.zero.Init(
        data_parallel_group=parallel_state.get_data_parallel_group(),
        config_dict_or_path=settings,
        mpu=ModelParallelUnit(),
        # No dtype: DeepSpeed 0.19 takes a given one only where the device has fp16, and bf16 instead of it elsewhere.
    )
    return context
