"""Tensors in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file that whoever may read other new files here may read, too.

    safetensors gives its files to their owner alone, whatever the umask: a model that a colleague, or the service
    that is to serve it, cannot open.

    Raises:
        OSError: it cannot be written; safetensors' own error is none of the system's, and would pass those who look
            for a full disk.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
