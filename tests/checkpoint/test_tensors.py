"""Files of tensors."""

import os
import stat

import pytest
import torch
from safetensors.torch import load_file

from loco_train.checkpoint.tensors import save_tensors


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_the_umask_says_who_may_read(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_tensors({"a": torch.ones(3)}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o666 & ~umask
    assert load_file(tmp_path / "model.safetensors")["a"].tolist() == [1.0] * 3
