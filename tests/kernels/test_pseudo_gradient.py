"""pseudo_gradient: descent sign, what is measured is what is sent, feedback loses nothing, no bad value goes unseen."""

import math

import pytest
import torch
from buffers import CHUNKED, KINDS, SIZES, normal, poisoned
from loco_kernels.pseudo_gradient import PART_ELEMENTS, pseudo_gradient
from loco_kernels.quantize import dequantize
from loco_kernels.wire import Wire


def inputs(generator, size, base_dtype=torch.float32):
    return normal(generator, size).to(base_dtype), normal(generator, size)


def received(wire: Wire) -> torch.Tensor:
    out = torch.empty(wire.numel, device=wire.buffer.device)
    dequantize(wire, out, form="reference")
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base_dtype", [torch.float32, torch.bfloat16])
def test_is_base_minus_local_on_the_wire(form, size, kind, base_dtype, generator, device):
    base, local = inputs(generator, size, base_dtype)
    wire, plain = poisoned(kind, size, device), poisoned(kind, size, device)
    sent = pseudo_gradient(base, local, out=wire, form=form)
    pseudo_gradient(base, local, out=plain, form="reference")
    assert torch.equal(wire.values, plain.values)
    assert torch.equal(received(wire), received(plain))
    parts = torch.nn.functional.pad(received(wire).double(), (0, -size % PART_ELEMENTS)).view(-1, PART_ELEMENTS)
    # Positive terms added in fp32 in a tree or in 16 lanes: a thousand roundings at most.
    torch.testing.assert_close(sent.squares.double(), parts.square().sum(1), rtol=1000 * 2**-24, atol=0)
    assert sent.finite
    assert sent.norm == pytest.approx(float(received(wire).double().norm()), rel=1000 * 2**-24)


@pytest.mark.parametrize("size", CHUNKED)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_seamless(size, kind, generator, device):
    base, local = inputs(generator, size)
    wire, plain = poisoned(kind, size, device), poisoned(kind, size, device)
    residual = 0.1 * normal(generator, size)
    expected = residual.clone()
    pseudo_gradient(base, local, out=wire, residual=residual, form="eager")
    pseudo_gradient(base, local, out=plain, residual=expected, form="reference")
    assert torch.equal(wire.values, plain.values)
    assert torch.equal(residual, expected)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_the_result_may_replace_the_local_parameters(form, out_dtype, generator):
    base, local = inputs(generator, 5000)
    expected = (base - local).to(out_dtype)
    out = local if out_dtype == torch.float32 else torch.empty_like(local, dtype=out_dtype)
    assert pseudo_gradient(base, local, out=out, form=form).finite
    assert torch.equal(out, expected)


def test_is_exact_in_float64(generator):
    base, local = torch.randn(2, 1000, dtype=torch.float64).unbind()
    out = torch.empty_like(base)
    assert pseudo_gradient(base, local, out=out).norm == pytest.approx(float((base - local).norm()), rel=1e-14)
    assert torch.equal(out, base - local)


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_feedback_loses_nothing_over_rounds(form, kind, generator, device):
    size, rounds = 1000, 6
    residual = torch.zeros(size, device=device)
    progress, arrived = torch.zeros(2, size, dtype=torch.float64, device=device).unbind()
    for number in range(rounds):
        base, local = inputs(generator, size)
        wire = poisoned(kind, size, device)
        key = None if kind == "bf16" else number
        pseudo_gradient(base, local, out=wire, residual=residual, key=key, form=form)
        progress += (base - local).double()
        arrived += received(wire).double()
    # In each round the sum with the residual, and the residual itself, are rounded: values below 8.
    assert float((arrived + residual.double() - progress).abs().max()) <= rounds * 2 * 8 * 2**-24


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 77, 5000, 9000])
def test_one_bad_value_is_seen_wherever_it_is(form, kind, bad, place, generator, device):
    base, local = inputs(generator, 9001)
    local[place] = bad
    sent = pseudo_gradient(base, local, out=poisoned(kind, 9001, device), form=form)
    assert not sent.finite
    assert sent.non_finite.tolist() == [1 if kind in ("fp32", "bf16") else min(128, 9001 - place // 128 * 128)]


def test_the_part_of_a_bad_value_is_told(device):
    base, local = torch.zeros(2, 2 * PART_ELEMENTS + 5, device=device).unbind()
    local[PART_ELEMENTS + 3] = torch.nan
    sent = pseudo_gradient(base, local, out=torch.empty_like(base))
    assert sent.non_finite.tolist() == [0, 1, 0]
    assert sent.squares[::2].tolist() == [0, 0]


def test_overflow_of_the_difference_is_seen(form, device):
    huge = torch.full((4,), 3e38, device=device)
    assert not pseudo_gradient(huge, -huge, out=torch.empty_like(huge), form=form).finite


def test_large_values_whose_square_overflows_are_finite(form, device):
    large = torch.full((4,), 1e30, device=device)
    assert pseudo_gradient(large, torch.zeros_like(large), out=torch.empty_like(large), form=form).finite


def test_an_empty_buffer_is_finite_and_has_no_length(form, device):
    empty = torch.empty(0, device=device)
    sent = pseudo_gradient(empty, empty, out=empty, form=form)
    assert sent.finite
    assert math.isclose(sent.norm, 0.0)


def test_arguments_that_do_not_fit_are_named():
    good = torch.zeros(4)
    with pytest.raises(ValueError, match="out must be float32 as local, got float64"):
        pseudo_gradient(good, good, out=good.double())
    with pytest.raises(ValueError, match="local must be float32 or float64, got bfloat16"):
        pseudo_gradient(good, good.bfloat16(), out=good)
    with pytest.raises(ValueError, match="base must have 4 elements as the others, got 5"):
        pseudo_gradient(torch.zeros(5), good, out=good)
    with pytest.raises(ValueError, match="residual must be float32 as local, got float64"):
        pseudo_gradient(good, good, out=good, residual=good.double())
    with pytest.raises(ValueError, match="base must be float32 or float64 or bfloat16, got float16"):
        pseudo_gradient(good.half(), good, out=good)
    with pytest.raises(ValueError, match="out must have 1 row, got 2"):
        pseudo_gradient(good, good, out=Wire.empty("int8", 4, rows=2))
    with pytest.raises(ValueError, match="key is for int8 and int4: fp32"):
        pseudo_gradient(good, good, out=good, key=1)
