"""Forms of an operation that can run here: Triton's on a GPU, or on a CPU in Triton's interpreter, which
test_triton.py starts in processes of their own."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    from interpreter import repair_bf16

    repair_bf16()

DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
HAS_TRITON = importlib.util.find_spec("triton") is not None and (INTERPRETED or DEVICE == "cuda")
FORMS = ["triton"] if INTERPRETED else ["eager", "reference", *(["triton"] if HAS_TRITON else [])]


def pytest_generate_tests(metafunc):
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", FORMS)


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture
def generator(device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)
