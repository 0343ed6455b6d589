"""quantize, dequantize: half a step at most, the same bits in every form, and no failure that travels as a number."""

import pytest
import torch
from buffers import CHUNKED, HALF_ULP, KINDS, SIZES, awkward, normal, poisoned, step_of
from loco_kernels import checks
from loco_kernels.quantize import dequantize, quantize
from loco_kernels.wire import HUGE, SMALLEST, Wire

INTEGER = ["int8", "int4"]


def there_and_back(x, kind, form, key=None):
    wire, out = poisoned(kind, len(x), x.device), torch.full_like(x, torch.nan)
    quantize(x, wire, key=key, form=form)
    dequantize(wire, out, form=form)
    return wire, out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_an_element_moves_by_half_a_step_at_most(form, kind, size, generator):
    x = normal(generator, size)
    wire, out = there_and_back(x, kind, form)
    # Half a step; the quotient and the product are rounded too, by an ulp of fp32 of 127 steps at most.
    bound = step_of(wire)[0] * (0.5 + 2 * 127 * 2.0**-24) + HALF_ULP.get(kind, 0) * x.abs()
    assert bool(((out.double() - x.double()).abs() <= bound).all())


@pytest.mark.parametrize(
    ("kind", "key"),
    [*((kind, None) for kind in KINDS), *((kind, key) for kind in INTEGER for key in (0, -(2**63), 2**63 - 1))],
)
@pytest.mark.parametrize("size", [1, 129, 4097])
def test_every_form_gives_the_same_bits(form, kind, key, size, generator, device):
    for x in (normal(generator, size), awkward(size, device)):
        wire, out = there_and_back(x, kind, form, key)
        plain, expected = there_and_back(x, kind, "reference", key)
        assert torch.equal(wire.values, plain.values)
        assert wire.scales is None or torch.equal(wire.scales, plain.scales)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("kind", INTEGER)
@pytest.mark.parametrize("size", CHUNKED)
def test_chunks_are_seamless(kind, size, generator):
    x = normal(generator, size)
    for key in (None, 5):
        wire, out = there_and_back(x, kind, "eager", key)
        plain, expected = there_and_back(x, kind, "reference", key)
        assert torch.equal(wire.values, plain.values)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("kind", INTEGER)
def test_stochastic_rounding_is_unbiased(form, kind, device):
    x = torch.full((4096,), 0.3, device=device)
    x[::128] = 1.0 if kind == "int4" else 100.0  # the group's step is 1/7, or 0.79
    kept = x != x[0]
    means = [there_and_back(x, kind, form, key)[1][kept].mean() for key in range(8)]
    wire, _ = there_and_back(x, kind, form, 0)
    # 8 * 4064 draws of at most half a step's deviation: five standard deviations of their mean.
    deviation = 5 * 0.5 * float(wire.scales[0, 0]) / (8 * 4064) ** 0.5
    assert abs(float(torch.stack(means).mean()) - 0.3) < deviation
    assert abs(float(there_and_back(x, kind, form)[1][kept].mean()) - 0.3) > 2 * deviation


@pytest.mark.parametrize("kind", INTEGER)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1.01 * HUGE])
@pytest.mark.parametrize("place", [128, 200, 255])
def test_a_group_with_a_value_that_cannot_travel_arrives_as_nan(form, kind, bad, place, generator):
    x = normal(generator, 400)
    x[place] = bad
    for key in (None, 3):
        _, out = there_and_back(x, kind, form, key)
        assert bool(out[128:256].isnan().all())
        assert bool(out[:128].isfinite().all())
        assert bool(out[256:].isfinite().all())


@pytest.mark.parametrize("kind", INTEGER)
def test_the_smallest_and_the_largest_group_arrive(form, kind, device):
    x = torch.zeros(512, device=device)
    x[:128], x[128:256], x[256:384] = SMALLEST, HUGE, SMALLEST * 0.999
    _, out = there_and_back(x, kind, form)
    torch.testing.assert_close(out[:256], x[:256], rtol=2**-22, atol=0)
    assert not out[256:].any()


def test_a_row_is_as_large_as_it_says():
    assert [Wire.empty(kind, 1280).nbytes for kind in KINDS] == [5120, 2560, 48 + 1280, 48 + 640]
    assert Wire.empty("int4", 1, rows=3).buffer.shape == (3, 16 + 64)


def test_arguments_that_do_not_fit_are_named():
    x, wire = torch.zeros(8), Wire.empty("int8", 8)
    with pytest.raises(ValueError, match="x must be float32 or float64, got bfloat16"):
        quantize(x.bfloat16(), wire)
    with pytest.raises(ValueError, match="x must be flat and contiguous"):
        quantize(torch.zeros(16)[::2], wire)
    with pytest.raises(ValueError, match="wire must have 8 elements as the others, got 9"):
        quantize(x, Wire.empty("int8", 9))
    with pytest.raises(ValueError, match="wire must have 1 row, got 2"):
        quantize(x, Wire.empty("int8", 8, rows=2))
    with pytest.raises(ValueError, match="key is for int8 and int4: bf16"):
        quantize(x, Wire.empty("bf16", 8), key=1)
    with pytest.raises(ValueError, match="key must fit into a signed 64-bit integer"):
        quantize(x, wire, key=2**63)
    with pytest.raises(ValueError, match="form must be one of triton, eager, reference or None, got 'cuda'"):
        quantize(x, wire, form="cuda")
    with pytest.raises(ValueError, match="kind must be one of fp32, bf16, int8, int4, got 'fp8'"):
        Wire.empty("fp8", 8)
    with pytest.raises(ValueError, match="wire must be on meta as the others, got cpu"):
        dequantize(wire, torch.zeros(8, device="meta"))


def test_a_buffer_that_is_not_aligned_is_named(monkeypatch):
    monkeypatch.setattr(checks, "ALIGNED_ON", ("cpu",))
    with pytest.raises(ValueError, match="x must start at a multiple of 16 bytes, got 0x"):
        quantize(torch.zeros(9)[1:], Wire.empty("int8", 8))
