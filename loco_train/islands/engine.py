"""Engines: one interface over DeepSpeed's engine with ZeRO 1, 2 or 3 and its pipeline engine with ZeRO 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from loco_train.config.schema import RunConfig
from loco_train.islands.layout import Layout
from loco_train.islands.views import ParameterViews


@dataclass(frozen=True)
class StepResult:
    """loss: mean over the island's batch, in nats, before the step. grad_norm: over the whole model, before clipping;
    infinite where a gradient was not finite, and then the step was not taken."""

    loss: float
    grad_norm: float


class Engine(Protocol):
    """One island's model and inner optimizer, seen from one rank. All methods are collective over the island."""

    layout: Layout
    views: ParameterViews

    def step(self, micro_batches: Sequence[Tensor], *, lr: float) -> StepResult:
        """One inner step at this learning rate; the same result on every rank.

        micro_batches: accumulation_steps int64 tensors [micro, sequence_length + 1] on the CPU: this data parallel
        rank's, the same on all its tensor and pipeline ranks.
        """

    def evaluate(self, micro_batches: Sequence[Tensor]) -> float:
        """Mean loss in nats over the island, the same on every rank.

        micro_batches: at least one, equally many on every data parallel rank, all of one shape [micro, length + 1].
        """

    def logits(self, micro_batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """Logits [positions, vocabulary] of this data parallel rank's sequences, some positions at a time, on every
        rank of the last stage; nothing on the others. Every rank goes through all of it.

        micro_batches: as for `evaluate`.
        """

    def close(self) -> None:
        """Free the engine's memory and hooks; the process groups stay."""


def build_engine(config: RunConfig, layout: Layout, *, device: torch.device) -> Engine:
    """The engine that `config.parallel` asks for, with initial weights from `config.seed`.

    The weights are the same for every tensor, pipeline, data and ZeRO layout. Collective over the island.

    Raises:
        ConfigError, EnvironmentProblem: the inner optimizer asked for is not there.
    """
    from loco_train.islands.pipeline_engine import PipelinedEngine
    from loco_train.islands.zero_engine import ZeroEngine

    engine_class = PipelinedEngine if layout.pipeline > 1 else ZeroEngine
    return engine_class.build(config, layout, device=device)


def deepspeed_settings(config: RunConfig, *, device: torch.device) -> dict[str, Any]:
    """DeepSpeed's configuration for this run."""
    parallel, precision = config.parallel, config.precision
    is_bf16 = precision.parameters == "bf16"
    accumulation = precision.accumulation if is_bf16 else "fp32"
    return {
        "train_micro_batch_size_per_gpu": config.batch.micro,
        "gradient_accumulation_steps": config.accumulation_steps,
        "gradient_clipping": config.optimizer.clip_grad_norm,
        "bf16": {"enabled": is_bf16},
        "data_types": {"grad_accum_dtype": accumulation},
        # As precise on the wire as in the sum; by default DeepSpeed reduces in the parameters' dtype.
        "communication_data_type": accumulation,
        "zero_optimization": {
            "stage": parallel.zero_stage,
            # Two collectives at once on one gloo group gain nothing; on CUDA they run beside the backward pass.
            "overlap_comm": device.type == "cuda" and parallel.zero_stage > 1,
            # DeepSpeed allocates this many elements once or twice; its default of 5e8 is 2 GB each.
            "reduce_bucket_size": REDUCE_BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": PERSISTENT_PARAMETER_ELEMENTS,
        },
        "zero_allow_untested_optimizer": True,  # plain SGD
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 62,
    }


REDUCE_BUCKET_ELEMENTS = 50_000_000
PERSISTENT_PARAMETER_ELEMENTS = 100_000  # ZeRO 3 keeps smaller parameters gathered: DeepSpeed's default
