"""Data for whole tiny runs, made once a session."""

import pytest

from loco_train.testing.runs import write_tiny_data


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    return write_tiny_data(tmp_path_factory.mktemp("tiny-data"))
