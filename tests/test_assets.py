"""Folders that travel with the package."""

from pathlib import Path

import pytest

from loco_train.assets import shared_folder
from loco_train.errors import EnvironmentProblem


@pytest.mark.parametrize("name", ["configs", "launchers"])
def test_a_checkout_has_them_at_its_top(name):
    # From a wheel and from an editable install: tests/packaging/test_install.py.
    assert shared_folder(name) == Path(__file__).resolve().parents[1] / name


def test_a_folder_that_is_not_there():
    with pytest.raises(EnvironmentProblem, match="the folder recipes/ of loco-train is missing"):
        shared_folder("recipes")
