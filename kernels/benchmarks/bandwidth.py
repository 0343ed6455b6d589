"""Benchmarks of what waits for memory: each operation beside the alternatives a user would write."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from loco_kernels import Wire, dequantize, mix, outer_step, pseudo_gradient, quantize
from loco_kernels.block_select import Selection, gather
from measure import Benchmark
from torch import Tensor


def benchmarks(device: str, elements: int) -> Iterator[Benchmark]:
    """Of flat buffers of so many elements, a multiple of 128."""
    yield copying(device, elements)
    yield pseudo_gradients(device, elements)
    yield outer_steps(device, elements)
    yield quantizing(device, elements)
    yield mixing(device, elements)
    yield gathering(device, elements)


def buffers(device: str, elements: int, count: int) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(elements, generator=generator, device=device) for _ in range(count)]


def copying(device: str, elements: int) -> Benchmark:
    """What the memory gives: the measure of all others."""
    x, y, out = buffers(device, elements, 3)
    variants = {"copy": lambda: out.copy_(x), "triad": lambda: torch.add(x, y, alpha=2.0, out=out)}
    return Benchmark("memory", str(elements), "fp32", 8 * elements, variants, lambda: None)


def pseudo_gradients(device: str, elements: int) -> Benchmark:
    base, local, difference = buffers(device, elements, 3)
    ours, theirs = (torch.empty(elements, dtype=torch.bfloat16, device=device) for _ in range(2))

    def eager() -> None:
        theirs.copy_(base - local)
        theirs.float().norm()

    def eager_preallocated() -> None:
        torch.sub(base, local, out=difference)
        theirs.copy_(difference)
        difference.norm()

    def check() -> None:
        sent = pseudo_gradient(base, local, out=ours)
        eager()
        _same(ours, theirs)
        torch.testing.assert_close(sent.norm, float(theirs.double().norm()), rtol=1e-5, atol=0)

    variants = {
        "ours": lambda: pseudo_gradient(base, local, out=ours),
        "eager": eager,
        "eager, preallocated, norm before rounding": eager_preallocated,
    }
    return Benchmark("pseudo_gradient", str(elements), "fp32 to bf16", 10 * elements, variants, check)


def outer_steps(device: str, elements: int) -> Benchmark:
    base, momentum, gradient, parameters, scratch = buffers(device, elements, 5)
    copy = torch.empty(elements, dtype=torch.bfloat16, device=device)
    lr, m = 1e-6, 0.9  # small, so that the values stay what they are over the repetitions
    parameter = torch.nn.Parameter(base.clone())
    parameter.grad = gradient
    fused = torch.optim.SGD([parameter], lr=lr, momentum=m, nesterov=True, fused=True)

    def ours() -> None:
        outer_step(
            base, momentum, gradient, kind="nesterov", lr=lr, momentum_coefficient=m, parameters=parameters, copy=copy
        )

    def eager() -> None:
        momentum.mul_(m).add_(gradient)
        base.sub_(lr * (gradient + m * momentum))
        parameters.copy_(base)
        copy.copy_(base)

    def eager_preallocated() -> None:
        momentum.mul_(m).add_(gradient)
        torch.add(gradient, momentum, alpha=m, out=scratch)
        base.add_(scratch, alpha=-lr)
        parameters.copy_(base)
        copy.copy_(base)

    def torch_fused() -> None:
        fused.step()
        parameters.copy_(parameter.detach())
        copy.copy_(parameter.detach())

    def check() -> None:
        wanted_momentum = m * momentum + gradient
        wanted = base - lr * (gradient + m * wanted_momentum)
        ours()
        torch.testing.assert_close(momentum, wanted_momentum, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(base, wanted, rtol=1e-6, atol=1e-6)
        _same(parameters, base)
        _same(copy, base.bfloat16())

    variants: dict[str, Callable[[], object]] = {
        "ours": ours, "eager": eager, "eager, preallocated": eager_preallocated, "torch_fused": torch_fused,
    }  # fmt: skip
    # Read base, momentum, gradient; written base, momentum, parameters, and the copy in bf16.
    return Benchmark("outer_step", str(elements), "fp32", 26 * elements, variants, check)


def quantizing(device: str, elements: int) -> Benchmark:
    (x,) = buffers(device, elements, 1)
    wire, out = Wire.empty("int8", elements, device=device), torch.empty_like(x)

    def eager() -> tuple[Tensor, Tensor]:
        groups = x.view(-1, 128)
        scales = groups.abs().amax(1, keepdim=True) / 127
        return (groups / scales).round().clamp(-127, 127).to(torch.int8), scales

    def check() -> None:
        quantize(x, wire)
        values, scales = eager()
        _same(wire.values[0], values.flatten())
        dequantize(wire, out)
        torch.testing.assert_close(out, (values * scales).flatten(), rtol=1e-6, atol=0)

    variants: dict[str, Callable[[], object]] = {"ours": lambda: quantize(x, wire), "eager": eager}
    if device == "cuda":
        variants["torch.compile"] = torch.compile(eager)
    return Benchmark("quantize", str(elements), "fp32 to int8", 4 * elements + wire.nbytes, variants, check)


def mixing(device: str, elements: int) -> Benchmark:
    own, other, out = buffers(device, elements, 3)

    def check() -> None:
        mix([own, other], [0.5, 0.5], out=out)
        torch.testing.assert_close(out, 0.5 * own + 0.5 * other, rtol=1e-6, atol=1e-6)

    variants: dict[str, Callable[[], object]] = {
        "ours": lambda: mix([own, other], [0.5, 0.5], out=out),
        "eager": lambda: out.copy_(0.5 * own + 0.5 * other),
        "lerp": lambda: torch.lerp(own, other, 0.5, out=out),
    }
    return Benchmark("mix", str(elements), "fp32", 12 * elements, variants, check)


def gathering(device: str, elements: int) -> Benchmark:
    """Half of the buffer, in ranges as the parameters of a transformer's layers are."""
    (x,) = buffers(device, elements, 1)
    size = max(128, elements // 64 // 128 * 128)
    selection = Selection(tuple((first, first + size) for first in range(0, elements - size, 2 * size)))
    out = torch.empty(selection.numel, device=device)

    def eager() -> Tensor:
        return torch.cat([x[first:end] for first, end in selection.ranges])

    def check() -> None:
        gather(x, selection, out=out)
        _same(out, eager())

    variants: dict[str, Callable[[], object]] = {"ours": lambda: gather(x, selection, out=out), "eager": eager}
    return Benchmark("block_select", str(elements), "fp32", 8 * selection.numel, variants, check)


def _same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
