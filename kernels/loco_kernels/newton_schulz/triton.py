"""newton_schulz in Triton: symmetric products at half their cost, and few passes over the matrices around them.

X <- a X + B X is left to cuBLAS, which has no symmetry to miss there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from loco_kernels.newton_schulz import eager
from loco_kernels.newton_schulz.coefficients import Steps
from loco_kernels.tiles import load, store

# Tiles of the smallest product for the symmetric kernel, about one for each SM of an H100: one matrix of 2048, or a
# batch of smaller ones. With fewer, idle SMs cost more than the half of the work that is saved (published: 0.7 of
# cuBLAS's speed below 2048, equal there, 1.3 to 1.6 of it from 4096 on).
SMALLEST_GRID = 136
# Elements of a program of the passes around the products.
BLOCK = 4096
# Rows of tiles that are worked on together: what runs at once shares more of X in the L2 cache than in single rows.
_TOGETHER = tl.constexpr(8)


@dataclass(frozen=True)
class Tile:
    """Of a symmetric product: rows and columns, depth of one step, and how it is run."""

    side: int
    depth: int
    warps: int
    stages: int


def tile_for(rows: int, dtype: torch.dtype) -> Tile:
    """The fastest for a product of as many rows; smaller ones where large ones leave SMs idle, and compute twice what
    their diagonal tiles hold."""
    # CDNA's LDS has a quarter of an H100's shared memory. fp32 takes twice the room.
    stages = 2 if torch.version.hip else 4
    depth = 64 if dtype.itemsize == 2 else 32
    if rows >= 512:
        return Tile(128, depth, warps=8, stages=stages)
    return Tile(64 if rows > 64 else 32, depth, warps=4, stages=stages)


@triton.jit
def _triangle(index):
    """Row and column of a place in 0; 1, 2; 3, 4, 5; ... The root is off by one at most."""
    row = ((tl.sqrt(8.0 * index.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    row = tl.where((row + 1) * (row + 2) // 2 <= index, row + 1, row)
    row = tl.where(row * (row + 1) // 2 > index, row - 1, row)
    return row, index - row * (row + 1) // 2


@triton.jit
def _place(index, tiles):
    """Row and column of a tile of the lower triangle: `_TOGETHER` rows, column by column, then the next ones."""
    row, _ = _triangle(index)
    first = row // _TOGETHER * _TOGETHER
    inside = index - first * (first + 1) // 2
    height = tl.minimum(tiles - first, _TOGETHER)
    # Behind the columns that all these rows have, a triangle of its own.
    corner_row, corner_column = _triangle(tl.maximum(inside - first * height, 0))
    corner = inside >= first * height
    row = tl.where(corner, corner_row, inside % height)
    column = tl.where(corner, first + corner_column, inside // height)
    return first + row, column


@triton.jit
def _tile_product(
    left_at, right_at, i, j, k, rows, inner_stride, INNER: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr
):
    """fp32 [SIDE, SIDE] of the rows i and j, from the places of their first DEPTH elements."""
    total = tl.zeros([SIDE, SIDE], tl.float32)
    for first in range(0, INNER, DEPTH):
        left_mask, right_mask = (i < rows)[:, None], (j < rows)[None, :]
        if INNER % DEPTH != 0:
            left_mask = left_mask & (k < INNER - first)[None, :]
            right_mask = right_mask & (k < INNER - first)[:, None]
        left = tl.load(left_at, mask=left_mask, other=0.0)
        right = tl.load(right_at, mask=right_mask, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
        left_at += DEPTH * inner_stride
        right_at += DEPTH * inner_stride
    return total


@triton.jit
def symmetric_product_kernel(
    left, right, add, out, alpha, beta, rows, matrix_stride, row_stride, inner_stride,
    INNER: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row_tile, column_tile = _place(tl.program_id(0), tl.cdiv(rows, SIDE))
    matrix = tl.program_id(1).to(tl.int64)
    i = row_tile * SIDE + tl.arange(0, SIDE)
    j = column_tile * SIDE + tl.arange(0, SIDE)
    k = tl.arange(0, DEPTH)
    # int64: an embedding has more than 2**31 elements.
    left_at = left + matrix * matrix_stride + i.to(tl.int64)[:, None] * row_stride + k[None, :] * inner_stride
    right_at = right + matrix * matrix_stride + j.to(tl.int64)[None, :] * row_stride + k[:, None] * inner_stride
    total = alpha * _tile_product(left_at, right_at, i, j, k, rows, inner_stride, INNER, SIDE, DEPTH)
    start = matrix * rows * rows
    at = start + i.to(tl.int64)[:, None] * rows + j[None, :]
    mask = (i < rows)[:, None] & (j < rows)[None, :]
    if add is not None:
        total += beta * tl.load(add + at, mask=mask, other=0.0).to(tl.float32)
    value = total.to(out.dtype.element_ty)
    tl.store(out + at, value, mask=mask)
    if row_tile != column_tile:
        mirrored = start + j.to(tl.int64)[:, None] * rows + i[None, :]
        tl.store(out + mirrored, tl.trans(value), mask=(j < rows)[:, None] & (i < rows)[None, :])


@triton.jit
def dot_kernel(matrices, peaks, polar, partials, n, BLOCK: tl.constexpr):
    """Of each block of G / peak: its product with the polar factor's, or with itself (polar: None)."""
    matrix = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    whole = start + BLOCK <= n
    unit = load(matrices + matrix * n, at, n, whole) / tl.load(peaks + matrix)
    other = unit
    if polar is not None:
        other = load(polar + matrix * n, at, n, whole)
    tl.store(partials + matrix * tl.num_programs(0) + tl.program_id(0), tl.sum(unit * other))


@triton.jit
def scale_kernel(source, divisors, factors, out, n, BLOCK: tl.constexpr):
    """source / divisor * factor of its matrix, in the dtype of `out`; divisors: None: 1."""
    matrix = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    whole = start + BLOCK <= n
    value = load(source + matrix * n, at, n, whole)
    if divisors is not None:
        value = value / tl.load(divisors + matrix)
    store(out + matrix * n, at, value * tl.load(factors + matrix), n, whole)


def newton_schulz(matrices: Tensor, out: Tensor, steps: Steps, scale: str, compute: torch.dtype) -> None:
    tiny = torch.finfo(torch.float32).tiny
    # Squares of elements as they come would overflow from 1e19 on, and vanish below 1e-23.
    peaks = torch.linalg.vector_norm(matrices, ord=torch.inf, dim=(1, 2)).float().clamp_(min=tiny)
    norms = dot(matrices, peaks, None).sqrt_()
    x = torch.empty_like(matrices, dtype=torch.float32 if compute == torch.float64 else compute)
    rescale(matrices, peaks, norms.clamp(min=tiny).reciprocal(), x)
    tall = x.shape[1] > x.shape[2]
    # A view: all that reads and writes it takes strides.
    polar = eager.iterate(x.mT if tall else x, steps, symmetric_product)
    polar = polar.mT if tall else polar
    if scale == "none":
        out.copy_(polar)
        return
    rank = min(matrices.shape[1:])
    factors = norms / rank**0.5 if scale == "rms" else dot(matrices, peaks, polar) / rank
    rescale(polar, None, peaks * factors, out)


def symmetric_product(
    left: Tensor, right: Tensor, add: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0
) -> Tensor:
    """An `eager.SymmetricProduct`, by its lower triangle where that pays."""
    product = triangle_product if triangle_pays(left) else eager.symmetric_product
    return product(left, right, add, alpha, beta)


def triangle_pays(left: Tensor) -> bool:
    """Whether a product of `left` [b, n, k] is large enough for the kernel, and is one that the kernel is good at."""
    batch, rows, inner = left.shape
    # Triton takes sizes that are no multiple of 16 for odd ones: 16-bit loads and spilled registers. In fp32, without
    # tensor cores, half of the work at its speed is what cuBLAS needs for all of it.
    if rows % 16 or inner % 16 or left.dtype == torch.float32:
        return False
    return batch * _tiles(rows, tile_for(rows, left.dtype)) >= SMALLEST_GRID


def triangle_product(
    left: Tensor, right: Tensor, add: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0
) -> Tensor:
    """An `eager.SymmetricProduct` by its lower triangle; left and right have the same strides, add is contiguous."""
    batch, rows, inner = left.shape
    tile = tile_for(rows, left.dtype)
    out = left.new_empty(batch, rows, rows)
    symmetric_product_kernel[(_tiles(rows, tile), batch)](
        left, right, add, out, alpha, beta, rows, *left.stride(),
        inner, tile.side, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def _tiles(rows: int, tile: Tile) -> int:
    side: int = triton.cdiv(rows, tile.side)
    return side * (side + 1) // 2


def dot(matrices: Tensor, peaks: Tensor, polar: Tensor | None) -> Tensor:
    """<G / peak, polar> of each matrix, fp32 [b]; |G / peak|_F^2 where polar is None. Partial sums, not atomics: the
    same bits each time."""
    batch, numel = len(matrices), matrices[0].numel()
    partials = matrices.new_empty(batch, triton.cdiv(numel, BLOCK), dtype=torch.float32)
    grid = (partials.shape[1], batch)
    dot_kernel[grid](matrices, peaks, polar, partials, numel, BLOCK, num_warps=4, num_stages=1)
    return partials.sum(1)


def rescale(source: Tensor, divisors: Tensor | None, factors: Tensor, out: Tensor) -> None:
    """Write source / divisors * factors of each matrix to `out`, of the same layout."""
    batch, numel = len(source), source[0].numel()
    grid = (triton.cdiv(numel, BLOCK), batch)
    scale_kernel[grid](source, divisors, factors, out, numel, BLOCK, num_warps=4, num_stages=1)
