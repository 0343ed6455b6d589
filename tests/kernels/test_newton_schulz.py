"""newton_schulz against its reference in fp64, which computes the same polynomials of the singular values."""

import importlib
import math

import pytest
import torch
from loco_kernels.newton_schulz import newton_schulz
from loco_kernels.newton_schulz.coefficients import COEFFICIENTS

COMPUTE = [torch.float32, torch.float16, torch.bfloat16]
# The last ones, twice as long as wide, go two steps at once.
SHAPES = [(1, 1), (127, 129), (128, 128), (1, 7), (7, 1), (40, 160), (160, 40), (3, 24, 40), (3, 20, 56)]
# Where singular values from 0.01 of the Frobenius norm on land.
BANDS = {"iso": (0.9777, 1.0318), "polar-express": (0.8702, 1.1236), "cans": (0.8606, 1.1134)}
# Terms of the longest sum here.
LONGEST = 160


@pytest.fixture(autouse=True)
def triangle(form, monkeypatch):
    """The Triton form, and in it the kernel for symmetric products, which such small matrices do without."""
    if form == "triton":
        module = importlib.import_module("loco_kernels.newton_schulz.triton")
        monkeypatch.setattr(module, "triangle_pays", lambda left: True)
        return module
    return None


def rounding(compute):
    """Unit roundoff of a product. Half precision sums in fp32; fp32 rounds its sums too, sqrt(terms) times as much."""
    unit = torch.finfo(compute).eps / 2
    return unit * math.sqrt(LONGEST) if compute.itemsize >= 4 else unit


def exact(matrices, **settings):
    return newton_schulz(matrices.double().cpu(), form="reference", **settings)


def error(found, expected):
    return float((found.double().cpu() - expected).norm() / expected.norm())


def with_spectrum(values, m, n):
    """fp64 [m, n] with these singular values."""
    generator = torch.Generator().manual_seed(m + n)
    u, v = (
        torch.linalg.qr(torch.randn(size, len(values), generator=generator, dtype=torch.float64))[0] for size in (m, n)
    )
    return (u * values) @ v.T


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_polynomial_to_the_rounding_of_its_products(shape, compute, form, device, generator):
    matrices = torch.randn(shape, generator=generator, device=device)
    found = newton_schulz(matrices, compute=compute, scale="none", form=form)
    assert found.shape == matrices.shape
    assert found.dtype == torch.float32
    # Published for these polynomials: 1.1e-3 to 1.3e-3 in fp16, 8e-3 to 1.1e-2 in bf16, that is 2.0 to 2.8 roundings;
    # a single row feels all of them in one direction: twice as much.
    assert error(found, exact(matrices, scale="none")) <= 6 * rounding(compute)


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("shape", [(40, 160), (100, 120)])
def test_a_decaying_spectrum_costs_no_more_than_in_single_steps(shape, compute, form, device):
    matrix = with_spectrum(torch.arange(1.0, min(shape) + 1) ** -1.5, *shape)
    found = newton_schulz(matrix.float().to(device), compute=compute, scale="none", form=form)
    # Published for k^-1.5 and single steps: 1.0e-2 in fp16, 8.3e-2 in bf16, which is 21 roundings.
    assert error(found, exact(matrix.float(), scale="none")) <= 21 * rounding(compute)


@pytest.mark.parametrize("name", ["polar-express", "cans"])
@pytest.mark.parametrize("shape", [(127, 129), (40, 160)])
def test_other_coefficients_are_their_polynomials(shape, name, form, device, generator):
    matrix = torch.randn(shape, generator=generator, device=device)
    found = newton_schulz(matrix, coefficients=name, compute=torch.float32, form=form)
    # Their slopes at small singular values are twice those of iso, 976 and 998 to 493.
    assert error(found, exact(matrix, coefficients=name)) <= 2 * 6 * rounding(torch.float32)


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        *(("iso", compute) for compute in COMPUTE),
        *((name, compute) for name in ("polar-express", "cans") for compute in COMPUTE[:2]),
    ],
)
@pytest.mark.parametrize("shape", [(24, 32), (24, 64), (64, 24)])
def test_singular_values_land_in_the_band_and_vectors_stay(shape, name, compute, form, device):
    matrix = with_spectrum(torch.logspace(0, math.log10(0.02), 24), *shape)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    smallest = float(values[-1] / values.norm())
    assert smallest > 0.01
    found = newton_schulz(matrix.float().to(device), coefficients=name, compute=compute, scale="none", form=form)
    inside = left.T @ found.double().cpu() @ right.T
    low, high = BANDS[name]
    slack = 6 * rounding(compute)
    assert inside.diagonal().min() >= low - slack
    assert inside.diagonal().max() <= high + slack
    # The smallest one is magnified to 1, and with it the rounding of X, of norm 1, in its direction.
    mixed = inside - inside.diagonal().diag()
    assert torch.linalg.matrix_norm(mixed, 2) <= rounding(compute) / smallest
    assert torch.linalg.matrix_norm(found.double().cpu() - left @ inside @ right, 2) <= rounding(compute) / smallest


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_bf16_stays_in_the_band_where_others_go_two_steps_at_once(name, form, device, generator):
    matrices = torch.randn(4, 40, 160, generator=generator, device=device)
    found = newton_schulz(matrices, coefficients=name, compute=torch.bfloat16, scale="none", form=form)
    # Two at once carry them to 1.29 (polar-express) and 1.25 (cans).
    assert torch.linalg.svdvals(found).max() <= BANDS[name][1] + 6 * rounding(torch.bfloat16)


@pytest.mark.parametrize("scale", ["trace", "rms", "none"])
@pytest.mark.parametrize("shape", [(30, 50), (90, 30), (2, 20, 30)])
def test_scales(shape, scale, form, device, generator):
    matrices = 3 * torch.randn(shape, generator=generator, device=device)
    found = newton_schulz(matrices, scale=scale, compute=torch.float32, form=form)
    expected = exact(matrices, scale=scale)
    assert error(found, expected) <= 6 * rounding(torch.float32)
    values = torch.linalg.svdvals(matrices.double().cpu())
    factor = {"trace": values.mean(-1), "rms": values.square().mean(-1).sqrt(), "none": torch.ones(1)}[scale]
    # Flat to within the band; the trace's factor is their mean to within the band, so once more.
    shares = torch.linalg.svdvals(expected) / factor[..., None]
    low, high = BANDS["iso"]
    power = 2 if scale == "trace" else 1
    assert shares.min() >= low**power
    assert shares.max() <= high**power


@pytest.mark.parametrize("factor", [1e30, 1e-30])
@pytest.mark.parametrize("scale", ["trace", "rms"])
def test_squares_neither_overflow_nor_vanish(scale, factor, form, device, generator):
    matrices = factor * torch.randn(24, 60, generator=generator, device=device)
    found = newton_schulz(matrices, scale=scale, compute=torch.float16, form=form)
    assert error(found / factor, exact(matrices, scale=scale) / factor) <= 6 * rounding(torch.float16)


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("scale", ["trace", "rms", "none"])
@pytest.mark.parametrize("shape", [(20, 30), (20, 60)])
def test_zeros_stay_zeros(shape, scale, compute, form, device):
    found = newton_schulz(torch.zeros(shape, device=device), scale=scale, compute=compute, form=form)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("compute", COMPUTE[:2])
@pytest.mark.parametrize("name", COEFFICIENTS)
@pytest.mark.parametrize("shape", [(40, 50), (40, 100)])
def test_null_directions_of_a_rank_one_matrix_stay_small(shape, name, compute, form, device, generator):
    rows, columns = (torch.randn(size, generator=generator, device=device) for size in shape)
    found = newton_schulz(torch.outer(rows, columns), coefficients=name, compute=compute, scale="none", form=form)
    values = torch.linalg.svdvals(found.double())
    # A singular value of 1 lies on the steepest place of the last two sets: they only stay in their bands.
    low, high = BANDS[name]
    assert low - 6 * rounding(compute) <= values[0] <= high + 6 * rounding(compute)
    # Rounding X, of norm 1, moves a null direction by no more than a roundoff, which the slopes at 0 magnify.
    assert values[1] <= math.prod(a for a, _, _ in COEFFICIENTS[name]) * rounding(compute)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(3, 20, 30), (3, 20, 60), (3, 60, 20)])
def test_what_is_not_finite_stays_in_its_matrix(shape, bad, form, device, generator):
    matrices = torch.randn(shape, generator=generator, device=device)
    expected = newton_schulz(matrices, form=form)
    matrices[1, 7, 9] = bad
    found = newton_schulz(matrices, form=form)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("shape", [(3, 33, 47), (3, 20, 70), (3, 70, 20)])
def test_a_batch_equals_its_matrices(shape, form, device, generator):
    matrices = torch.randn(shape, generator=generator, device=device)
    found = newton_schulz(matrices, compute=torch.float32, form=form)
    single = torch.stack([newton_schulz(matrix, compute=torch.float32, form=form) for matrix in matrices])
    # Libraries may add in another order for a batch.
    assert error(found, single.double().cpu()) <= 6 * rounding(torch.float32)


def test_writes_into_out_which_may_be_the_argument(form, device, generator):
    matrices = torch.randn(2, 20, 30, generator=generator, device=device)
    before, out = matrices.clone(), torch.empty_like(matrices)
    expected = newton_schulz(matrices, form=form)
    assert torch.equal(matrices, before)
    assert newton_schulz(matrices, out=out, form=form) is out
    assert torch.equal(out, expected)
    assert newton_schulz(matrices, out=matrices, form=form) is matrices
    assert torch.equal(matrices, expected)


@pytest.mark.parametrize("shape", [(30, 40), (100, 20)])
def test_fp64_for_oracles(shape, form, device, generator):
    matrix = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
    found = newton_schulz(matrix, compute=None if device == "cpu" else torch.float32, form=form)
    assert found.dtype == torch.float64
    computed = torch.float64 if device == "cpu" and form != "triton" else torch.float32
    assert error(found, exact(matrix)) <= 6 * rounding(computed)


@pytest.mark.parametrize(("rows", "compute"), [(144, torch.float16), *((130, compute) for compute in COMPUTE)])
def test_many_tiles_make_one_symmetric_product(rows, compute, triangle, form, monkeypatch, device, generator):
    """More rows of tiles than are worked on together, in both layouts of X, and with all that is added to it."""
    if triangle is None:
        pytest.skip("of the Triton form")
    monkeypatch.setattr(triangle, "tile_for", lambda rows, dtype: triangle.Tile(16, 32, warps=4, stages=2))
    x = torch.randn(2, rows, 40, generator=generator, device=device).to(compute)
    add = torch.randn(2, rows, rows, generator=generator, device=device).to(compute)
    add = add + add.mT
    wide = triangle.triangle_product(x, x, add=add, alpha=0.5, beta=-2.0)
    tall = x.mT.contiguous().mT
    assert torch.equal(wide, wide.mT)
    assert torch.equal(triangle.triangle_product(tall, tall, add=add, alpha=0.5, beta=-2.0), wide)
    expected = 0.5 * x.double() @ x.double().mT - 2 * add.double()
    # Rounded once when it is stored; before, sums of 40 products in fp32.
    assert error(wide, expected.cpu()) <= rounding(compute) + 40**0.5 * 2**-24


def test_the_triangle_is_for_large_and_even_products(triangle, monkeypatch):
    if triangle is None:
        pytest.skip("of the Triton form")
    monkeypatch.undo()
    pays = triangle.triangle_pays
    half = {"dtype": torch.float16, "device": "meta"}
    assert pays(torch.empty(1, 2048, 2048, **half))
    assert not pays(torch.empty(1, 1024, 4096, **half))
    assert pays(torch.empty(4, 1024, 4096, **half))
    assert not pays(torch.empty(1, 4100, 4100, **half))
    assert not pays(torch.empty(1, 4096, 4096, device="meta"))


def test_arguments_that_do_not_fit_are_named(form):
    good = torch.zeros(3, 4)
    calls = {
        "matrices must be [m, n] or [b, m, n], none of them 0, got [3]": (torch.zeros(3), {}),
        "matrices must be [m, n] or [b, m, n], none of them 0, got [1, 1, 1, 1]": (torch.zeros(1, 1, 1, 1), {}),
        "matrices must be [m, n] or [b, m, n], none of them 0, got [0, 3]": (torch.zeros(0, 3), {}),
        "matrices must be float32 or float64, got bfloat16": (good.bfloat16(), {}),
        "matrices must be contiguous, got strides [1, 4]": (good.T, {}),
        "coefficients must be one of iso, polar-express, cans, got 'muon'": (good, {"coefficients": "muon"}),
        "scale must be one of trace, rms, none, got 'mean'": (good, {"scale": "mean"}),
        "compute must be float32, float16, bfloat16 or None, got int8": (good, {"compute": torch.int8}),
        "out must be float32 as matrices, got float64": (good, {"out": good.double()}),
        "out must be [3, 4] as matrices, got [4, 3]": (good, {"out": torch.zeros(4, 3)}),
        "out must be contiguous, got strides [1, 3]": (good, {"out": torch.zeros(4, 3).T}),
        "out must be on cpu as matrices, got meta": (good, {"out": good.to("meta")}),
        "form must be one of triton, eager, reference or None, got 'cuda'": (good, {"form": "cuda"}),
    }
    for message, (matrices, settings) in calls.items():
        with pytest.raises(ValueError) as raised:  # noqa: PT011 (the whole message is compared)
            newton_schulz(matrices, **{"form": form, **settings})
        assert str(raised.value) == message
