"""These tests need a GPU: tools/gpu_check.sh runs them. They have not been run on one yet."""

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
