"""outer_step against its reference and, bit for bit, against torch.optim.SGD."""

import pytest
import torch
from loco_kernels.outer_step import CHUNK_ELEMENTS, outer_step, outer_step_reference

SIZES = [1, 127, 128, 129, CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS + 1, 3 * CHUNK_ELEMENTS + 17]
SETTINGS = [("nesterov", 0.9), ("heavy-ball", 0.9), ("sgd", 0.0)]


@pytest.mark.parametrize(("kind", "momentum"), SETTINGS)
@pytest.mark.parametrize("size", SIZES)
def test_equals_torch_sgd_to_the_bit_over_steps(size, kind, momentum):
    generator = torch.Generator().manual_seed(size)
    start = torch.randn(size, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=momentum, nesterov=kind == "nesterov")
    base, velocity = start.clone(), torch.zeros(size)
    for _ in range(3):
        gradient = torch.randn(size, generator=generator)
        parameter.grad = gradient.clone()
        sgd.step()
        outer_step(base, velocity, gradient.clone(), kind=kind, lr=0.7, momentum_coefficient=momentum)
    assert torch.equal(base, parameter.detach())


@pytest.mark.parametrize(("kind", "momentum"), SETTINGS)
def test_equals_the_reference_in_float64(kind, momentum):
    base, velocity, gradient = torch.randn(3, 1000, dtype=torch.float64).unbind()
    expected = outer_step_reference(base, velocity, gradient, kind=kind, lr=0.5, momentum_coefficient=momentum)
    base, velocity = base.clone(), velocity.clone()
    outer_step(base, velocity, gradient.clone(), kind=kind, lr=0.5, momentum_coefficient=momentum)
    # Four operations of relative error 2**-53 on values below 16.
    torch.testing.assert_close((base, velocity), expected, rtol=0, atol=4 * 16 * 2**-53)


def test_arguments_that_do_not_fit_are_named():
    good = torch.zeros(8)
    call = {"kind": "sgd", "lr": 1.0, "momentum_coefficient": 0.0}
    with pytest.raises(ValueError, match="gradient must be float32 or float64, got torch.bfloat16"):
        outer_step(good, good.clone(), good.bfloat16(), **call)
    with pytest.raises(ValueError, match="momentum and base must have one shape"):
        outer_step(good, torch.zeros(7), good.clone(), **call)
    with pytest.raises(ValueError, match="base must be flat and contiguous"):
        outer_step(torch.zeros(16)[::2], good, good.clone(), **call)
    with pytest.raises(ValueError, match="kind must be one of nesterov, heavy-ball, sgd, got 'adam'"):
        outer_step(good, good.clone(), good.clone(), kind="adam", lr=1.0, momentum_coefficient=0.0)
