"""Runs an operation of Triton's interpreter on memory that ends at a protected page: `guarded.py OPERATION`.

The interpreter reads and writes where the pointers say. An access behind a buffer's end ends this process by SIGSEGV.
"""

import ctypes
import importlib
import mmap
import sys

import torch
from loco_kernels import dequantize, mix, newton_schulz, outer_step, pseudo_gradient, quantize
from loco_kernels.block_select import Selection, gather, scatter, squares
from loco_kernels.wire import GROUP, KINDS, LARGEST, Wire

PAGE = mmap.PAGESIZE
SIZES = [1, 127, 128, 129, 2047, 2049, 4095, 4097]
_libc = ctypes.CDLL(None, use_errno=True)
_kept = []


def guarded(numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Ones, of which the last is followed by a page that may not be touched."""
    size = numel * dtype.itemsize
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 1) * PAGE)
    _kept.append(memory)  # torch does not keep it
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(ctypes.c_void_p(start + pages * PAGE), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    tensor = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=pages * PAGE - size).view(dtype)
    return tensor.fill_(1)


def wire(kind: str, numel: int) -> Wire:
    groups = -(-numel // GROUP)
    count = groups * GROUP // 2 if kind == "int4" else numel
    values = guarded(count, Wire.empty(kind, 1).values.dtype)[None]
    scales = guarded(groups)[None] if kind in LARGEST else None
    return Wire(kind, numel, values.view(torch.uint8), values, scales)


def run_quantize(numel: int, kind: str) -> None:
    buffer = wire(kind, numel)
    quantize(guarded(numel), buffer, key=1 if kind in LARGEST else None, form="triton")
    dequantize(buffer, guarded(numel), form="triton")


def run_pseudo_gradient(numel: int, kind: str) -> None:
    pseudo_gradient(guarded(numel), guarded(numel), out=wire(kind, numel), residual=guarded(numel), form="triton")
    pseudo_gradient(guarded(numel, torch.bfloat16), guarded(numel), out=wire(kind, numel), form="triton")


def run_outer_step(numel: int, kind: str) -> None:
    outer_step(
        guarded(numel), guarded(numel), wire(kind, numel), kind="nesterov", lr=1.0, momentum_coefficient=0.9,
        parameters=guarded(numel), copy=guarded(numel, torch.bfloat16), form="triton",
    )  # fmt: skip


def run_mix(numel: int, kind: str) -> None:
    terms = [wire(kind, numel), guarded(numel)]
    mix(terms, [0.5, 0.5], out=guarded(numel), base=guarded(numel), form="triton")


def run_block_select(numel: int, kind: str) -> None:
    selections = [Selection(((0, numel),)), Selection(((0, min(numel, 100)), (numel // 128 * 128, numel)))]
    for selection in selections:
        packed = guarded(selection.numel)
        gather(guarded(numel), selection, out=packed, form="triton")
        scatter(packed, selection, out=guarded(numel), form="triton")
    squares(guarded(numel), selections, form="triton")


def run_newton_schulz(numel: int, kind: str) -> None:
    """Of as many rows and of as many columns; the small products inside by the symmetric kernel too."""
    if numel > 129 or kind not in ("fp32", "bf16"):
        return
    module = importlib.import_module("loco_kernels.newton_schulz.triton")
    module.triangle_pays = lambda left: True
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16}[kind]
    for rows, columns in ((numel, 37), (37, numel)):
        matrices, out = (guarded(rows * columns).view(rows, columns) for _ in range(2))
        newton_schulz(matrices, out=out, compute=compute, form="triton")
        left = guarded(rows * columns, compute).view(1, rows, columns)
        add = guarded(rows * rows, compute).view(1, rows, rows)
        module.triangle_product(left, left, add, 1.0, 1.0)


def run_control(numel: int, kind: str) -> None:
    """What the page is there to catch."""
    ctypes.string_at(guarded(numel).data_ptr(), 4 * numel + 1)


if __name__ == "__main__":
    operation = globals()[f"run_{sys.argv[1]}"]
    for size in SIZES:
        for each in KINDS:
            operation(size, each)
    print("all inside")
