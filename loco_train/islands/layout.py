"""Where a rank stands in its island, and the process groups of the island's tensor, data and pipeline parallelism."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import cast

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from megatron.core import parallel_state
from torch.distributed import ProcessGroup

from loco_train.config.schema import RunConfig
from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.islands.backends import silence, without_shared_memory_op


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism of an island, and this rank's place.

    Ranks are ordered tensor fastest, then data, then pipeline: Megatron-core's default, and the order of DeepSpeed's
    PipeModelDataParallelTopology.
    """

    tensor: int
    pipeline: int
    data: int
    rank: int

    @property
    def tensor_index(self) -> int:
        return self.rank % self.tensor

    @property
    def data_index(self) -> int:
        return self.rank // self.tensor % self.data

    @property
    def pipeline_index(self) -> int:
        return self.rank // (self.tensor * self.data)

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline_index == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pipeline_index == self.pipeline - 1


def join_island(config: RunConfig, *, device: torch.device) -> Layout:
    """Build the island's process groups over the default group, which must exist. Collective over the island.

    Raises:
        ConfigError: the island has not as many ranks as `parallel` says.
        EnvironmentProblem: DeepSpeed was told to use another kind of device.
    """
    parallel = config.parallel
    ranks = dist.get_world_size()
    if ranks != parallel.ranks:
        raise ConfigError(
            "the island has not as many ranks as its parallelism needs",
            got=f"{ranks} ranks",
            allowed=f"{parallel.ranks}: tensor {parallel.tensor} x pipeline {parallel.pipeline} x data {parallel.data}",
            fix="start that many ranks, or change parallel.data",
        )
    silence()
    _use_accelerator(device)
    _build_groups(tensor=parallel.tensor, pipeline=parallel.pipeline)
    with without_shared_memory_op():
        deepspeed.init_distributed(
            dist_backend=dist.get_backend(), auto_mpi_discovery=False, dist_init_required=False, verbose=False
        )
    layout = Layout(parallel.tensor, parallel.pipeline, parallel.data, dist.get_rank())
    _check_rank_order(layout)
    # Else a rank that fails right after this would show on the others as a failure to connect.
    dist.barrier()
    return layout


def _build_groups(*, tensor: int, pipeline: int) -> None:
    if parallel_state.model_parallel_is_initialized():
        sizes = (
            parallel_state.get_tensor_model_parallel_world_size(),
            parallel_state.get_pipeline_model_parallel_world_size(),
        )
        if sizes == (tensor, pipeline):
            return  # Megatron builds 27 groups of three threads each and never ends one
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        create_gloo_process_groups=False,
    )


def _use_accelerator(device: torch.device) -> None:
    """Make DeepSpeed, which chooses its device by itself and by environment variables, use this one."""
    if device.type == "cpu" and get_accelerator().device_name() != "cpu":
        set_accelerator(CPU_Accelerator())
    if get_accelerator().device_name() != device.type:
        raise EnvironmentProblem(
            f"DeepSpeed does not use {device.type}",
            got=f"{get_accelerator().device_name()}, by the environment variable DS_ACCELERATOR",
            fix="unset DS_ACCELERATOR, or set device=cpu",
        )
    # It puts the model on the GPU of that number; where a launcher shows each rank one GPU only, the two differ.
    if device.type == "cuda" or "LOCAL_RANK" not in os.environ:
        os.environ["LOCAL_RANK"] = str(device.index or 0)


def _check_rank_order(layout: Layout) -> None:
    # Layout, Megatron and DeepSpeed each compute a rank's place; if an upgrade changed one of them, ranks would
    # exchange pieces of different parameters without any error.
    megatron = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_rank(),
    )
    assert megatron == (layout.tensor_index, layout.data_index, layout.pipeline_index), megatron


class ModelParallelUnit:
    """What DeepSpeedEngine asks of Megatron when there is no pipeline: model parallel means tensor parallel."""

    def get_model_parallel_rank(self) -> int:
        return int(parallel_state.get_tensor_model_parallel_rank())

    def get_model_parallel_world_size(self) -> int:
        return int(parallel_state.get_tensor_model_parallel_world_size())

    def get_model_parallel_group(self) -> ProcessGroup:
        return cast(ProcessGroup, parallel_state.get_tensor_model_parallel_group())

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group

    def get_data_parallel_rank(self) -> int:
        return int(parallel_state.get_data_parallel_rank())

    def get_data_parallel_world_size(self) -> int:
        return int(parallel_state.get_data_parallel_world_size())

    def get_data_parallel_group(self) -> ProcessGroup:
        return cast(ProcessGroup, parallel_state.get_data_parallel_group())
