"""Which form of an operation runs: `<operation>/triton.py` on CUDA and HIP, `eager.py` elsewhere, `reference.py` when
it is asked for. Each has functions of the operation's names and arguments, which were checked before."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch

FORMS = ("triton", "eager", "reference")


def module_of(operation: str, form: str | None, device: torch.device) -> Any:
    """The module with an operation's form; None: the fastest one for the device.

    Raises:
        ValueError: there is no such form.
    """
    if form is not None and form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)} or None, got {form!r}")
    # A CUDA build of torch without triton (Windows, some distributions) still trains, by torch's own operations.
    chosen = form or ("triton" if device.type == "cuda" and has_triton() else "eager")
    return importlib.import_module(f"loco_kernels.{operation}.{chosen}")


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
