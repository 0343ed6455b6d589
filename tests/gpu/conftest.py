"""These tests need a GPU: tools/gpu_check.sh runs them. They have not been run on one yet."""

import json
import os
from pathlib import Path

import pytest

from loco_train.testing.runs import write_tiny_data


def pytest_collection_modifyitems(items):
    import torch

    here = Path(__file__).parent
    if not torch.cuda.is_available():
        for item in items:
            if here in Path(item.path).parents:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    return write_tiny_data(tmp_path_factory.mktemp("tiny-data"))


@pytest.fixture
def record_row():
    """Append a measured row to the file that tools/gpu_check.sh names."""

    def record(**row):
        import torch

        versions = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
        with open(os.environ.get("LOCO_GPU_CHECK_ROWS", os.devnull), "a") as file:
            file.write(json.dumps({**row, **versions}) + "\n")

    return record
