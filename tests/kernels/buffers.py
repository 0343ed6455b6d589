"""Inputs of awkward sizes and values, and outputs that hold poison before they are written."""

import torch
from loco_kernels.wire import Wire

# Around a group of 128, a program of 1024 to 4096 and a chunk of 2**18; a chunk only where no interpreter is at work.
SIZES = [1, 127, 128, 129, 1023, 1025, 4095, 4097, 3 * 4096 + 77]
CHUNKED = [2**18 - 1, 2**18 + 1, 3 * 2**18 + 17]
KINDS = ["fp32", "bf16", "int8", "int4"]
# Half a unit of the last place of a value of 1.
HALF_ULP = {"fp32": 0.0, "bf16": 2.0**-8, "fp64": 0.0}


def normal(generator: torch.Generator, *size: int) -> torch.Tensor:
    """Progress as it is: magnitudes over some decades."""
    scale = 10.0 ** (4 * torch.rand(size, generator=generator, device=generator.device) - 4)
    return torch.randn(size, generator=generator, device=generator.device) * scale


def awkward(size: int, device: str) -> torch.Tensor:
    """Zeros, subnormals, tiny, ordinary and huge values, in groups of their own and mixed."""
    values = [0.0, -0.0, 1e-40, -1e-45, 1e-38, 2.0**-120, 1e-30, 1.0, -1.0, 65504.0, 3e18, 2.0**126, -(2.0**127)]
    x = torch.tensor(values, device=device).repeat(-(-size // len(values)))[:size].clone()
    x[: min(size, 128)] = 1e-42  # a group of subnormals
    x[128 : min(size, 256)] = 0
    return x


def poisoned(kind: str, numel: int, device: str, rows: int = 1) -> Wire:
    wire = Wire.empty(kind, numel, device=device, rows=rows)
    wire.buffer.fill_(0x7B)
    return wire


def step_of(wire: Wire) -> torch.Tensor:
    """Of each element: the step of its group, fp64 [rows, n]; 0 for plain formats."""
    if wire.scales is None:
        return torch.zeros(wire.rows, wire.numel, dtype=torch.float64, device=wire.buffer.device)
    return wire.scales.double().repeat_interleave(128, dim=1)[:, : wire.numel]
