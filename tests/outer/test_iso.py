"""Flat spectra: exact and fast, on matrices of every shape and rank."""

import pytest
import torch
from loco_kernels import newton_schulz

from loco_train.outer.iso import NewtonSchulz, clip_high, clip_low, flat_spectrum

SHAPES = [(16, 16), (40, 24), (24, 40), (1, 8), (8, 1)]


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def orthogonal(size: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(gaussian(size, size, seed=seed))[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_all_singular_values_become_their_mean(shape):
    matrix = gaussian(*shape)
    mean = torch.linalg.svdvals(matrix).mean()
    flat = torch.linalg.svdvals(flat_spectrum(matrix))
    torch.testing.assert_close(flat, mean.expand_as(flat), rtol=1e-13, atol=0)


def test_turns_with_the_matrix_and_scales_with_it():
    """T6."""
    matrix, left, right = gaussian(12, 20), orthogonal(12, 1), orthogonal(20, 2)
    for function in (flat_spectrum, clip_high, clip_low):
        turned = function(left @ matrix @ right)
        torch.testing.assert_close(turned, left @ function(matrix) @ right, rtol=0, atol=1e-13)
        torch.testing.assert_close(function(3 * matrix), 3 * function(matrix), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [flat_spectrum, clip_high, clip_low, NewtonSchulz("trace"), NewtonSchulz("rms")])
def test_zero_stays_zero(function, dtype):
    assert torch.equal(function(torch.zeros(6, 4, dtype=dtype)), torch.zeros(6, 4, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [flat_spectrum, clip_low])
def test_null_directions_stay_at_zero(function, dtype):
    """Formed in `dtype`, so that its null singular values are that dtype's rounding, not exact zeros."""
    matrix = gaussian(30, 3, dtype=dtype) @ gaussian(3, 20, seed=1, dtype=dtype)
    values = torch.linalg.svdvals(function(matrix).double())
    mean = torch.linalg.svdvals(matrix.double()).sum() / 20
    assert (values[3:] < 30 * torch.finfo(dtype).eps * values[0]).all()
    assert values[2] >= mean * (1 - 1e-5)


def test_rows_that_were_never_touched_do_not_move():
    matrix = gaussian(64, 8)
    matrix[10:40] = 0
    assert flat_spectrum(matrix)[10:40].abs().max() < 1e-14


def test_clipping_touches_one_side_of_the_mean_only():
    matrix = gaussian(10, 10)
    before = torch.linalg.svdvals(matrix)
    high, low = torch.linalg.svdvals(clip_high(matrix)), torch.linalg.svdvals(clip_low(matrix))
    torch.testing.assert_close(high, before.clamp(max=float(before.mean())), rtol=1e-13, atol=0)
    torch.testing.assert_close(low, before.clamp(min=float(before.mean())), rtol=1e-13, atol=0)


@pytest.mark.parametrize("shape", [(128, 128), (64, 176), (176, 64)])
def test_newton_schulz_is_close_to_the_polar_factor(shape):
    """T7: cosine above 0.98 on Gaussian matrices; the five steps leave values in about [0.7, 1.15]."""
    matrix = gaussian(*shape, dtype=torch.float32)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    found, polar = newton_schulz(matrix, scale="none"), u @ v
    assert torch.nn.functional.cosine_similarity(found.flatten(), polar.flatten(), dim=0) > 0.98


def test_newton_schulz_scales():
    """trace is the mean of the singular values, rms their root mean square, within what the five steps leave."""
    matrix = gaussian(64, 64) @ torch.diag(1 / torch.arange(1, 65, dtype=torch.float64).sqrt())
    values = torch.linalg.svdvals(matrix)
    polar = newton_schulz(matrix, scale="none")
    trace = (NewtonSchulz("trace")(matrix) / polar).mean()
    rms = (NewtonSchulz("rms")(matrix) / polar).mean()
    assert trace == pytest.approx(float(values.mean()), rel=0.03)
    assert rms == pytest.approx(float(values.square().mean().sqrt()), rel=1e-6)


def test_newton_schulz_leaves_a_low_rank_matrixs_null_space_at_zero():
    matrix = gaussian(64, 8) @ gaussian(8, 64, seed=1)
    assert torch.linalg.svdvals(newton_schulz(matrix, scale="none"))[8:].max() < 1e-6
