"""The run's model in one process, without islands."""

from __future__ import annotations

import torch

from loco_train.assembly.start import join_default_group
from loco_train.config.schema import RunConfig
from loco_train.islands import Engine, build_engine, join_island
from loco_train.launch.environment import RankEnvironment


def build_offline_engine(config: RunConfig, *, device: torch.device) -> Engine:
    """The run's model in one process, in fp32, for evaluating checkpoints of any layout. Makes a default group."""
    alone = config.model_dump(mode="json")
    alone["islands"] = {}
    alone["parallel"] = {}
    alone["health"] = {}
    alone["precision"] = {"parameters": "fp32"}
    alone["batch"]["island"] = alone["batch"]["micro"]
    single = RunConfig.model_validate(alone)
    join_default_group(RankEnvironment(0, 1, 0, None), config=single, device=device)
    return build_engine(single, join_island(single, device=device), device=device)
