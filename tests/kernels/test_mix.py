"""mix: the weighted sum of its terms, with the same bits on every side, in whatever format they came."""

import pytest
import torch
from buffers import CHUNKED, KINDS, SIZES, normal, poisoned
from loco_kernels.mix import mix
from loco_kernels.quantize import quantize
from loco_kernels.wire import Wire


def exact(terms, weights, base=None):
    size = terms[0].numel if isinstance(terms[0], Wire) else len(terms[0])
    out = torch.empty(size, dtype=torch.float64)
    wide = [term if isinstance(term, Wire) else term.double().cpu() for term in terms]
    mix(wide, weights, out=out, base=None if base is None else base.double().cpu(), form="reference")
    return out


def close(got, wanted, operations):
    # Each operation rounds at values below 8.
    torch.testing.assert_close(got.double().cpu(), wanted, rtol=0, atol=operations * 8 * 2**-24)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weights", [[0.5, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.25, 0.5, 0.25], [1.0]])
def test_is_the_weighted_sum(form, size, weights, generator, device):
    terms = [normal(generator, size) for _ in weights]
    out = torch.full((size,), torch.nan, device=device)
    mix(terms, weights, out=out, form=form)
    close(out, exact(terms, weights), len(weights))


@pytest.mark.parametrize("count", [4, 5, 8, 9])
def test_takes_any_number_of_terms_of_which_one_is_overwritten(form, count, generator):
    terms = [normal(generator, 1000) for _ in range(count)]
    weights = [1 / count] * count
    expected = exact(terms, weights)
    mix(terms, weights, out=terms[-1], form=form)
    close(terms[-1], expected, count)


@pytest.mark.parametrize("size", CHUNKED)
def test_chunks_are_seamless(size, generator):
    terms = [normal(generator, size) for _ in range(2)]
    expected = exact(terms, [0.25, 0.75])
    mix(terms, [0.25, 0.75], out=terms[0], form="eager")
    close(terms[0], expected, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 129, 4097])
def test_differences_to_a_base_come_in_every_format(form, kind, size, generator, device):
    base, own = normal(generator, size), normal(generator, size)
    wire = poisoned(kind, size, device)
    quantize(normal(generator, size), wire, form="reference")
    out = torch.full((size,), torch.nan, device=device)
    mix([wire, own], [0.5, 0.25], out=out, base=base, form=form)
    close(out, exact([_cpu(wire), own], [0.5, 0.25], base), 3)


def _cpu(wire: Wire) -> Wire:
    copied = Wire.empty(wire.kind, wire.numel)
    copied.buffer.copy_(wire.buffer)
    return copied


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_of_a_pair_get_the_same_bits(form, kind, generator, device):
    sent = [poisoned(kind, 5000, device) for _ in range(2)]
    for wire in sent:
        quantize(normal(generator, 5000), wire, form="reference")
    sides = []
    for _ in range(2):
        sides.append(torch.full((5000,), torch.nan, device=device))
        mix(sent, [0.5, 0.5], out=sides[-1], form=form)
    assert torch.equal(*sides)


def test_float64_stays_float64(generator):
    terms = [torch.randn(100, dtype=torch.float64) for _ in range(2)]
    out = torch.empty(100, dtype=torch.float64)
    mix(terms, [0.3, 0.7], out=out)
    torch.testing.assert_close(out, 0.3 * terms[0] + 0.7 * terms[1], rtol=0, atol=8 * 2**-53)


def test_arguments_that_do_not_fit_are_named():
    good = torch.zeros(8)
    with pytest.raises(ValueError, match="terms and weights must be as many, at least one, got 0 and 0"):
        mix([], [], out=good)
    with pytest.raises(ValueError, match="terms and weights must be as many, at least one, got 1 and 2"):
        mix([good], [0.5, 0.5], out=good)
    with pytest.raises(ValueError, match=r"terms\[1\] must have 8 elements as the others, got 7"):
        mix([good, torch.zeros(7)], [0.5, 0.5], out=good)
    with pytest.raises(ValueError, match=r"terms\[0\] must have 1 row, got 2"):
        mix([Wire.empty("int8", 8, rows=2)], [1.0], out=good)
    with pytest.raises(ValueError, match="base must be float32 as out, got float64"):
        mix([good], [1.0], out=good, base=good.double())
