"""Benchmarks of Newton-Schulz: beside the plain iteration, and torch's own in its Muon."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from loco_kernels import newton_schulz
from loco_kernels.newton_schulz.coefficients import COEFFICIENTS
from measure import Benchmark
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz

SHAPES = {
    "cuda": [(1, 1024, 1024), (8, 1024, 1024), (1, 4096, 4096), (1, 4096, 16384), (1, 8192, 8192)],
    "cpu": [(1, 512, 512), (1, 512, 2048)],
}


def benchmarks(device: str) -> Iterator[Benchmark]:
    for shape in SHAPES[device]:
        yield newton_schulzes(device, shape)


def newton_schulzes(device: str, shape: tuple[int, int, int]) -> Benchmark:
    batch, rows, columns = shape
    generator = torch.Generator(device).manual_seed(0)
    matrices = torch.randn(shape, generator=generator, device=device)
    compute = torch.float16 if device == "cuda" else torch.float32

    def check() -> None:
        found = newton_schulz(matrices, scale="none").double()
        wanted = newton_schulz(matrices.double(), scale="none", form="reference")
        # In fp16: kernels measured at 1.3e-2 of the polynomial in fp64 for square matrices; in fp32 far below.
        assert float((found - wanted).norm() / wanted.norm()) < 3e-2

    variants: dict[str, Callable[[], object]] = {
        "ours": lambda: newton_schulz(matrices),
        "eager": functools.partial(plain, matrices, compute),
        "torch.optim.Muon's, bf16": lambda: [
            _zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7) for matrix in matrices
        ],
    }
    # No floor: products are not waited for by memory.
    name = f"{rows}x{columns}" if batch == 1 else f"{batch}x{rows}x{columns}"
    return Benchmark("newton_schulz", name, str(compute).removeprefix("torch."), 0, variants, check)


def plain(matrices: Tensor, compute: torch.dtype) -> Tensor:
    """The iteration as the paper writes it, and the scale `trace`."""
    x = (matrices / matrices.norm(dim=(1, 2), keepdim=True)).to(compute)
    for a, b, c in COEFFICIENTS["iso"]:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    polar = x.to(matrices.dtype)
    return polar * (polar * matrices).sum((1, 2), keepdim=True) / min(matrices.shape[1:])
