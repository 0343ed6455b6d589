"""Aggregators that take every island's matrix, against the merging methods written out in NumPy in float64."""

import numpy as np
import pytest
import torch

from loco_train.outer.iso import flat_spectrum
from loco_train.outer.merging import IsoCTS, Ties, tsv_m

TOLERANCE = (
    1e-12  # of an SVD of matrices of 8 columns: some 8 * 2**-53 of values of about 1, with room for its iterations
)


def random_stack(islands: int, rows: int, columns: int, *, seed: int = 0):
    return np.random.Generator(np.random.PCG64(seed)).standard_normal((islands, rows, columns))


def polar(matrix):
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    return u @ vt


def ties(stack, trimmed):
    out = np.zeros(stack.shape[1:])
    kept = []
    for matrix in stack:
        order = np.sort(np.abs(matrix).ravel())
        count = int(trimmed * matrix.size)
        kept.append(np.where(np.abs(matrix) > (order[count - 1] if count else -1), matrix, 0))
    for place in np.ndindex(out.shape):
        values = [matrix[place] for matrix in kept]
        elected = np.sign(sum(values))
        agreeing = [value for value in values if value and np.sign(value) == elected]
        out[place] = np.mean(agreeing) if agreeing else 0
    return out


def tsv(stack):
    count = max(1, min(stack.shape[1:]) // len(stack))
    parts = [np.linalg.svd(matrix, full_matrices=False) for matrix in stack]
    u = np.concatenate([u[:, :count] for u, _, _ in parts], axis=1)
    s = np.concatenate([s[:count] for _, s, _ in parts])
    vt = np.concatenate([vt[:count] for _, _, vt in parts])
    return polar(u) @ np.diag(s) @ polar(vt)


def iso_cts(stack, common):
    islands, rank = len(stack), min(stack.shape[1:])
    own = (rank - round(common * rank)) // islands
    k = rank - own * islands
    u, s, vt = (part[..., :k] if i < 2 else part[:k] for i, part in enumerate(np.linalg.svd(stack.sum(0), False)))
    us, ss, vts = [u], [s], [vt]
    for matrix in stack:
        own_u, own_s, own_vt = np.linalg.svd(matrix - u @ u.T @ matrix, False)
        us.append(own_u[:, :own])
        ss.append(own_s[:own])
        vts.append(own_vt[:own])
    value = np.concatenate(ss).mean() / islands  # the paper merges a sum of progresses, an outer step takes their mean
    return value * polar(np.concatenate(us, axis=1)) @ polar(np.concatenate(vts))


@pytest.mark.parametrize("trimmed", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("islands", [1, 2, 5])
def test_ties(islands, trimmed):
    stack = random_stack(islands, 13, 8)
    got = Ties(trimmed)(torch.from_numpy(stack)).numpy()
    np.testing.assert_allclose(got, ties(stack, trimmed), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("shape", [(13, 8), (8, 13), (8, 8)])
@pytest.mark.parametrize("islands", [2, 4, 16])
def test_tsv_m(islands, shape):
    stack = random_stack(islands, *shape)
    np.testing.assert_allclose(tsv_m(torch.from_numpy(stack)).numpy(), tsv(stack), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("common", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("islands", [2, 3, 16])
@pytest.mark.parametrize("shape", [(13, 8), (8, 13)])
def test_iso_cts(shape, islands, common):
    stack = random_stack(islands, *shape)
    got = IsoCTS(common)(torch.from_numpy(stack)).numpy()
    np.testing.assert_allclose(got, iso_cts(stack, common), rtol=0, atol=TOLERANCE)


def test_iso_cts_with_all_directions_common_is_iso():
    stack = torch.from_numpy(random_stack(3, 9, 6))
    torch.testing.assert_close(IsoCTS(1.0)(stack), flat_spectrum(stack.mean(0)), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("merge", [Ties(0.1), tsv_m, IsoCTS(0.5)])
def test_of_nothing_comes_nothing(merge):
    assert torch.equal(merge(torch.zeros(3, 5, 4)), torch.zeros(5, 4))


def test_equal_islands_give_what_one_has():
    one = torch.from_numpy(random_stack(1, 9, 6))
    stack = one.expand(3, -1, -1)
    torch.testing.assert_close(Ties(0.0)(stack), one[0], rtol=0, atol=TOLERANCE)
    u, s, vt = np.linalg.svd(one[0].numpy(), full_matrices=False)
    np.testing.assert_allclose(tsv_m(stack).numpy(), (u[:, :2] * s[:2]) @ vt[:2], rtol=0, atol=TOLERANCE)
