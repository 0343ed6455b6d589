"""The one door to DeepSpeed and Megatron-core: both are imported here first, quietly.

Megatron-core warns at import about each optional package that is absent, and DeepSpeed reports its own start-up at
length; neither tells a user of this package anything to act on.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

# Without it DeepSpeed tries each accelerator it knows in turn and warns about those that it did not find.
os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in ("deepspeed", "megatron.core.transformer.transformer_layer"):
        importlib.import_module(name)


def silence() -> None:
    """Drop the warnings that both give while training; they concern their own code.

    Called when an island is joined, and not at import: an importer may restore the filters of before.
    """
    # DeepSpeed 0.19 calls names that torch 2.13 deprecates, once for each collective.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*(all_gather_into|reduce_scatter)_tensor.*")
    if not torch.cuda.is_available():
        warnings.filterwarnings("ignore", message=".*CUDA_DEVICE_MAX_CONNECTIONS.*")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


@contextlib.contextmanager
def quiet_build() -> Iterator[None]:
    """DeepSpeed prints the pipeline's partition and its settings to standard output while it builds an engine."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def without_shared_memory_op() -> Iterator[None]:
    """DeepSpeed's communication starts without its shared-memory all-reduce.

    On a CPU its first start compiles that op (78 s measured), which only `inference_all_reduce` uses; training never
    calls it. There is no setting for it, so the builder is replaced while the backend is made.
    """
    # As an attribute, deepspeed.comm.torch is PyTorch: the module of that name imports it.
    module: Any = importlib.import_module("deepspeed.comm.torch")
    original = module.build_shm_op
    module.build_shm_op = lambda: None
    try:
        yield
    finally:
        module.build_shm_op = original
