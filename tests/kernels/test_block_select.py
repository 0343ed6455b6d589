"""block_select: what is gathered is what was there, what is scattered is what was gathered, nothing else is touched."""

import pytest
import torch
from buffers import normal
from loco_kernels.block_select import TILE_ELEMENTS, Selection, gather, scatter, squares

SIZE = 20_000
RANGES = [
    (),
    ((0, 1),),
    ((0, 0), (128, 128)),
    ((128, 255), (256, 384), (512, 641)),
    ((4096, 8192),),
    ((0, TILE_ELEMENTS - 1), (8192, 8192 + TILE_ELEMENTS + 1), (16_384, SIZE)),
    ((2048, 2100), (0, 128)),  # in another order than they lie
]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gathered_and_scattered(form, ranges, dtype, generator, device):
    selection = Selection(ranges)
    x, target = normal(generator, 2, SIZE).to(dtype).unbind()
    packed = torch.full((selection.numel,), torch.nan, dtype=dtype, device=device)
    gather(x, selection, out=packed, form=form)
    expected = torch.zeros_like(packed)
    for first, end, place in selection.placed:
        assert place % 128 == 0
        expected[place : place + end - first] = x[first:end]
    assert torch.equal(packed, expected)
    written, wanted = target.clone(), target.clone()
    scatter(packed, selection, out=written, form=form)
    for first, end in ranges:
        wanted[first:end] = x[first:end]
    assert torch.equal(written, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_of_each_block(form, dtype, generator):
    x = normal(generator, SIZE).to(dtype)
    found = squares(x, [Selection(ranges) for ranges in RANGES], form=form)
    wide = x.double()
    wanted = torch.stack([sum((wide[a:b].square().sum() for a, b in r), wide.new_zeros(())) for r in RANGES])
    # Positive terms, added in fp32 in a tree or in 16 lanes: a thousand roundings at most.
    torch.testing.assert_close(found, wanted, rtol=1000 * 2**-24, atol=0)
    assert squares(x, [], form=form).shape == (0,)


def test_a_bad_value_is_seen_in_its_block_alone(form, generator):
    x = normal(generator, SIZE)
    x[700] = torch.nan
    found = squares(x, [Selection(((0, 640),)), Selection(((640, 768),)), Selection(((768, SIZE),))], form=form)
    assert found.isnan().tolist() == [False, True, False]


def test_float64_stays_float64():
    x = torch.randn(300, dtype=torch.float64)
    packed = torch.empty(256, dtype=torch.float64)
    gather(x, Selection(((3, 200),)), out=packed)  # on a CPU a range may begin anywhere
    assert torch.equal(packed[:197], x[3:200])
    assert squares(x, [Selection(((3, 200),))]).dtype == torch.float64


def test_arguments_that_do_not_fit_are_named():
    x, selection = torch.zeros(300), Selection(((0, 100),))
    with pytest.raises(ValueError, match=r"ranges must lie within the buffer's 300 elements, got \(128, 301\)"):
        gather(x, Selection(((128, 301),)), out=torch.zeros(256))
    with pytest.raises(ValueError, match="out must have 128 elements on cpu, got 100 on cpu"):
        gather(x, selection, out=torch.zeros(100))
    with pytest.raises(ValueError, match="packed must be float32, got float64"):
        scatter(torch.zeros(128).double(), selection, out=x)
    with pytest.raises(ValueError, match="x must be float32 or float64 or bfloat16, got int64"):
        squares(torch.zeros(3).long(), [selection])
    with pytest.raises(ValueError, match="ranges must begin at multiples of 128 for Triton, got 3"):
        Selection(((3, 100),)).tiles(torch.device("cpu"))
