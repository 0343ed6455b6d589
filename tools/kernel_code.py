#!/usr/bin/env python3
"""Compiles every Triton kernel for GPUs that need not be there, and checks the machine code.

    PYTHONPATH=.triton/3.7.1 python tools/kernel_code.py            # check, and compare with docs/kernels.md
    PYTHONPATH=.triton/3.7.1 python tools/kernel_code.py --write    # write the table into docs/kernels.md

No spills; 128-bit accesses where memory is what a kernel waits for; tensor cores where products are; registers and
shared memory within what the architecture has.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from kernel_cases import CASES, Case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/kernels.md"
BEGIN, END = "<!-- code: begin -->", "<!-- code: end -->"
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"

# Shared memory of a block in bytes, and the instruction of the tensor cores.
NVIDIA = {80: (163 * 1024, "HMMA"), 90: (227 * 1024, "HGMMA"), 100: (227 * 1024, "UTCHMMA")}
AMD_SHARED, AMD_PRODUCT = 64 * 1024, "mfma"


@dataclass(frozen=True)
class Code:
    """What a kernel became. instructions: how often each stands in the code."""

    case: Case
    target: str
    registers: int
    spilled: int
    shared: int
    instructions: Counter[str]

    def count(self, *beginnings: str) -> int:
        return sum(n for name, n in self.instructions.items() if name.startswith(beginnings))

    @property
    def wide(self) -> int:
        """Accesses to global memory of 128 bits."""
        return self.count("LDG.E.128", "STG.E.128", "UTMALDG", "UTMASTG", "global_load_dwordx4", "global_store_dwordx4")


def compiled(case: Case, target: GPUTarget) -> Any:
    names = case.kernel.arg_names
    signature = {name: "constexpr" if name in case.constants else case.types[name] for name in names}
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    divisible = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name not in case.constants and (signature[name].startswith("*") or name in case.divisible)
    }
    # CDNA's shared memory has room for two stages.
    stages = case.stages if target.backend == "cuda" else min(case.stages, 2)
    options = {"num_warps": case.warps, "num_stages": stages, "enable_fp_fusion": case.products}
    return triton.compile(ASTSource(case.kernel, signature, constants, divisible), target=target, options=options)


def nvidia_code(case: Case, architecture: int) -> Code:
    kernel = compiled(case, GPUTarget("cuda", architecture, 32))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, machine = (_dump(what, file.name) for what in ("--dump-resource-usage", "--dump-sass"))
    counted = Counter(re.findall(r"\b((?:LDG|STG|LDL|STL|HMMA|HGMMA|UTCHMMA|UTMALDG|UTMASTG)[.\w]*)", machine))
    registers, stack = (max(map(int, re.findall(rf"{what}:(\d+)", usage))) for what in ("REG", "STACK"))
    spilled = stack + sum(n for name, n in counted.items() if name.startswith(("LDL", "STL")))
    return Code(case, f"sm_{architecture}", registers, spilled, kernel.metadata.shared, counted)


def _dump(what: str, path: str) -> str:
    return subprocess.run([TOOLS / "cuobjdump", what, path], check=True, capture_output=True, text=True).stdout


def amd_code(case: Case) -> Code:
    kernel = compiled(case, GPUTarget("hip", "gfx942", 64))
    text = kernel.asm["amdgcn"]
    found = re.findall(r"\b(v_mfma\w*|global_(?:load|store)_\w+|buffer_(?:load|store)_\w+)", text)
    counted = Counter(name.removeprefix("v_").replace("buffer_", "global_") for name in found)
    registers = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])
    spilled = int(re.search(r"\.vgpr_spill_count:\s+(\d+)", text)[1])
    return Code(case, "gfx942", registers, spilled, kernel.metadata.shared, counted)


def problems(code: Code) -> Iterator[str]:
    """What is wrong with it."""
    amd = code.target == "gfx942"
    shared, product = (AMD_SHARED, AMD_PRODUCT) if amd else NVIDIA[int(code.target.removeprefix("sm_"))]
    if code.spilled:
        yield f"spills ({code.spilled})"
    if code.shared > shared:
        yield f"{code.shared} bytes of shared memory, at most {shared}"
    if code.registers * code.case.warps * 32 > 65536 and not amd:
        yield f"{code.registers} registers a thread, at most {65536 // (32 * code.case.warps)}"
    if code.case.products and not code.count(product):
        yield f"no {product}"
    # On gfx942 the widths are chosen by its own rules: told in the table, not checked.
    if not code.case.products and not amd:
        if not code.wide:
            yield "no access of 128 bits"
        narrow = code.count("LDG.E.U16", "LDG.E.U8", "LDG.E.S8", "STG.E.U16", "STG.E.U8")
        if narrow and not code.case.ragged:
            yield f"{narrow} accesses of 8 or 16 bits"


def table(codes: list[Code]) -> str:
    lines = ["| kernel | variant | target | registers | shared bytes | 128-bit accesses | tensor core instructions |"]
    lines.append("|---|---|---|---:|---:|---:|---:|")
    for code in codes:
        products = code.count("HMMA", "HGMMA", "UTCHMMA", "mfma")
        cells = (code.case.name, code.case.variant, code.target, code.registers, code.shared, code.wide, products)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/kernels.md")
    arguments = parser.parse_args()
    codes = [code for case in CASES for code in (*(nvidia_code(case, a) for a in NVIDIA), amd_code(case))]
    wrong = [f"{c.case.name}, {c.case.variant}, {c.target}: {problem}" for c in codes for problem in problems(c)]
    print("\n".join([f"{len(codes)} kernels compiled by triton {triton.__version__}", *wrong]))
    before, rest = DOCUMENT.read_text().split(BEGIN)
    written, after = rest.split(END)
    fresh = f"\n{table(codes)}\n"
    if arguments.write:
        DOCUMENT.write_text(before + BEGIN + fresh + END + after)
    elif written != fresh:
        wrong.append("stale")
        print("docs/kernels.md holds another table\n  to do: --write, and look at what changed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
