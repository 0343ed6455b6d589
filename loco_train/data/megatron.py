"""The door to Megatron-core's indexed datasets. Importing Megatron-core takes seconds, so it happens at first use."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any


@cache
def indexed_dataset() -> Any:
    """The module `megatron.core.datasets.indexed_dataset`."""
    with _quiet():
        from megatron.core.datasets import indexed_dataset as module
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Megatron-core says at import which optional packages (apex, transformer-engine) are absent."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def bin_path(prefix: Path) -> Path:
    """The file of the tokens. (`with_suffix` would cut a dot in the name.)"""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """The file of the documents' bounds and the token type."""
    return prefix.with_name(prefix.name + ".idx")
