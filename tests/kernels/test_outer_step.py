"""outer_step against its reference in float64 and, on a CPU bit for bit, against torch.optim.SGD."""

import pytest
import torch
from buffers import CHUNKED, KINDS, SIZES, normal, poisoned
from loco_kernels.outer_step import outer_step
from loco_kernels.quantize import quantize
from loco_kernels.wire import Wire

SETTINGS = [("nesterov", 0.9), ("heavy-ball", 0.9), ("sgd", 0.0)]
# torch.optim.SGD refuses Nesterov without momentum; methods use it.
ALL_SETTINGS = [*SETTINGS, ("nesterov", 0.0), ("heavy-ball", 0.0), ("sgd", 0.9)]


def sgd(start, kind, momentum, *, fused=False):
    parameter = torch.nn.Parameter(start.clone())
    settings = {"lr": 0.7, "momentum": momentum, "nesterov": kind == "nesterov", "fused": fused}
    return parameter, torch.optim.SGD([parameter], **settings)


@pytest.mark.parametrize(("kind", "momentum"), SETTINGS)
@pytest.mark.parametrize("size", [*SIZES, *CHUNKED])
def test_equals_torchs_fused_sgd_to_the_bit_on_a_cpu(size, kind, momentum):
    generator = torch.Generator().manual_seed(size)
    base, velocity = torch.randn(size, generator=generator), torch.zeros(size)
    parameter, optimizer = sgd(base, kind, momentum, fused=True)
    for _ in range(3):
        gradient = torch.randn(size, generator=generator)
        parameter.grad = gradient.clone()
        optimizer.step()
        outer_step(base, velocity, gradient, kind=kind, lr=0.7, momentum_coefficient=momentum, form="eager")
    assert torch.equal(base, parameter.detach())


@pytest.mark.parametrize(("kind", "momentum"), SETTINGS)
@pytest.mark.parametrize("size", SIZES)
def test_equals_torch_sgd_and_writes_its_copies(form, size, kind, momentum, generator, device):
    base, velocity = torch.randn(size, generator=generator, device=device), torch.zeros(size, device=device)
    parameter, optimizer = sgd(base, kind, momentum)
    for _ in range(3):
        gradient = torch.randn(size, generator=generator, device=device)
        parameter.grad = gradient.clone()
        optimizer.step()
        parameters = torch.full_like(base, torch.nan)
        copy = torch.full_like(base, torch.nan, dtype=torch.bfloat16)
        outer_step(
            base, velocity, gradient, kind=kind, lr=0.7, momentum_coefficient=momentum,
            parameters=parameters, copy=copy, form=form,
        )  # fmt: skip
        assert torch.equal(parameters, base)
        assert torch.equal(copy, base.bfloat16())
    # Each step rounds four times at values below 16.
    torch.testing.assert_close(base, parameter.detach(), rtol=0, atol=3 * 4 * 16 * 2**-24)


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("wire_kind", KINDS)
@pytest.mark.parametrize("size", [1, 129, 1025, 5000])
def test_takes_the_mean_of_what_arrived(form, rows, wire_kind, size, generator, device):
    wire = poisoned(wire_kind, size, device, rows=rows)
    for row in range(rows):
        quantize(normal(generator, size), wire.row(row), form="reference")
    base, velocity = normal(generator, 2, size).unbind()
    exact_base, exact_velocity = base.double(), velocity.double()
    settings = {"kind": "nesterov", "lr": 0.7, "momentum_coefficient": 0.9}
    outer_step(exact_base, exact_velocity, wire, form="reference", **settings)
    base, velocity = base.clone(), velocity.clone()
    outer_step(base, velocity, wire, form=form, **settings)
    # `rows` additions, a division and four operations on values below 8.
    torch.testing.assert_close((base, velocity), (exact_base.float(), exact_velocity.float()), rtol=0,
                               atol=(rows + 6) * 8 * 2**-24)  # fmt: skip


@pytest.mark.parametrize(("kind", "momentum"), ALL_SETTINGS)
def test_equals_the_reference_in_float64(kind, momentum):
    base, velocity, gradient = torch.randn(3, 1000, dtype=torch.float64).unbind()
    expected = base.clone(), velocity.clone()
    settings = {"kind": kind, "lr": 0.5, "momentum_coefficient": momentum}
    outer_step(*expected, gradient, form="reference", **settings)
    base, velocity = base.clone(), velocity.clone()
    outer_step(base, velocity, gradient, **settings)
    # Four operations of relative error 2**-53 on values below 16.
    torch.testing.assert_close((base, velocity), expected, rtol=0, atol=4 * 16 * 2**-53)


@pytest.mark.parametrize(("kind", "momentum"), ALL_SETTINGS)
def test_every_kind_updates_both_buffers_as_the_reference(form, kind, momentum, generator):
    base, velocity, gradient = (normal(generator, 300) for _ in range(3))
    exact = base.double(), velocity.double()
    settings = {"kind": kind, "lr": 0.5, "momentum_coefficient": momentum}
    outer_step(*exact, gradient.double(), form="reference", **settings)
    outer_step(base, velocity, gradient, form=form, **settings)
    # Four operations on values below 8.
    torch.testing.assert_close((base, velocity), tuple(e.float() for e in exact), rtol=0, atol=5 * 8 * 2**-24)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_value_changes_its_own_element_alone(form, bad, generator):
    base, velocity, gradient = (normal(generator, 300) for _ in range(3))
    gradient[150] = bad
    outer_step(base, velocity, gradient, kind="nesterov", lr=0.7, momentum_coefficient=0.9, form=form)
    assert torch.nonzero(~base.isfinite()).view(-1).tolist() == [150]


def test_arguments_that_do_not_fit_are_named():
    good = torch.zeros(8)
    call = {"kind": "sgd", "lr": 1.0, "momentum_coefficient": 0.0}
    with pytest.raises(ValueError, match="gradient must be float32 or float64, got bfloat16"):
        outer_step(good, good.clone(), good.bfloat16(), **call)
    with pytest.raises(ValueError, match="momentum must have 8 elements as the others, got 7"):
        outer_step(good, torch.zeros(7), good.clone(), **call)
    with pytest.raises(ValueError, match="base must be flat and contiguous"):
        outer_step(torch.zeros(16)[::2], good, good.clone(), **call)
    with pytest.raises(ValueError, match="copy must be bfloat16, got float32"):
        outer_step(good, good.clone(), good.clone(), copy=good, **call)
    with pytest.raises(ValueError, match="momentum must be float32 as base, got float64"):
        outer_step(good, good.double(), good.clone(), **call)
    with pytest.raises(ValueError, match="gradient must have 8 elements as the others, got 9"):
        outer_step(good, good.clone(), Wire.empty("int8", 9), **call)
    with pytest.raises(ValueError, match="kind must be one of nesterov, heavy-ball, sgd, got 'adam'"):
        outer_step(good, good.clone(), good.clone(), kind="adam", lr=1.0, momentum_coefficient=0.0)
