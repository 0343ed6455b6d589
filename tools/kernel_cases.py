"""Which specialisations of the kernels `kernel_code.py` compiles: those that training uses, by dtypes and constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loco_kernels.block_select.triton import TILE, copy_kernel, squares_kernel
from loco_kernels.mix.triton import GROUPS as MIX_GROUPS
from loco_kernels.mix.triton import mix_kernel
from loco_kernels.newton_schulz.triton import BLOCK, dot_kernel, scale_kernel, symmetric_product_kernel
from loco_kernels.outer_step.triton import GROUPS as OUTER_STEP_GROUPS
from loco_kernels.outer_step.triton import outer_step_kernel
from loco_kernels.pseudo_gradient.triton import GROUPS as PSEUDO_GRADIENT_GROUPS
from loco_kernels.pseudo_gradient.triton import pseudo_gradient_kernel
from loco_kernels.quantize.triton import GROUPS as QUANTIZE_GROUPS
from loco_kernels.quantize.triton import dequantize_kernel, quantize_kernel

WIRE = {"fp32": ("*fp32", 0), "bf16": ("*bf16", 0), "int8": ("*i8", 127), "int4": ("*u8", 7)}


@dataclass(frozen=True)
class Case:
    """types: of the arguments that are no constants, by name. products: whether it multiplies matrices. divisible:
    numbers that are multiples of 16 in use. ragged: pieces of any length have a branch of their own, with narrow
    accesses.
    """

    name: str
    variant: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    products: bool = False
    warps: int = 4
    stages: int = 3
    divisible: tuple[str, ...] = ("n", "value_stride", "scale_stride")
    ragged: bool = False


def _scales(kind: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The argument `scales`: a pointer, or None, which Triton takes as a constant."""
    return ({"scales": "*fp32"}, {}) if WIRE[kind][1] else ({}, {"scales": None})


def _quantize(kind: str, *, stochastic: bool) -> Case:
    pointer, largest = WIRE[kind]
    types = {"x": "*fp32", "values": pointer, "scales": "*fp32", "n": "i64", "key": "i64"}
    constants = {"LARGEST": largest, "STOCHASTIC": stochastic, "GROUPS": QUANTIZE_GROUPS}
    return Case("quantize", f"{kind}{', stochastic' if stochastic else ''}", quantize_kernel, types, constants)


def _dequantize(kind: str) -> Case:
    pointer, largest = WIRE[kind]
    types = {"values": pointer, "scales": "*fp32", "out": "*fp32", "n": "i64"}
    return Case("dequantize", kind, dequantize_kernel, types, {"LARGEST": largest, "GROUPS": QUANTIZE_GROUPS})


def _pseudo_gradient(base: str, kind: str, *, feedback: bool = False) -> Case:
    pointer, largest = WIRE[kind]
    scales, no_scales = _scales(kind)
    types = {
        "base": f"*{base}", "local": "*fp32", "values": pointer, **scales, "squares": "*fp32", "bad": "*i32",
        "n": "i64", "key": "i64", **({"residual": "*fp32"} if feedback else {}),
    }  # fmt: skip
    constants = {
        **no_scales, **({} if feedback else {"residual": None}), "LARGEST": largest, "STOCHASTIC": False,
        "FEEDBACK": feedback, "GROUPS": PSEUDO_GRADIENT_GROUPS,
    }  # fmt: skip
    variant = f"{base} base to {kind}{', feedback' if feedback else ''}"
    return Case("pseudo_gradient", variant, pseudo_gradient_kernel, types, constants)


def _outer_step(kind: str, rows: int) -> Case:
    pointer, largest = WIRE[kind]
    scales, no_scales = _scales(kind)
    types = {
        "base": "*fp32", "momentum": "*fp32", "values": pointer, **scales, "parameters": "*fp32", "copy": "*bf16",
        "n": "i64", "value_stride": "i64", "scale_stride": "i64", "lr": "fp32", "coefficient": "fp32",
    }  # fmt: skip
    constants = {**no_scales, "ROWS": rows, "LARGEST": largest, "KIND": "nesterov", "GROUPS": OUTER_STEP_GROUPS}
    return Case("outer_step", f"nesterov, {rows} x {kind}", outer_step_kernel, types, constants)


def _mix(kinds: tuple[str, ...], *, base: bool) -> Case:
    types = {"out": "*fp32", "n": "i64", **{f"weight_{i}": "fp32" for i in range(4)}}
    constants: dict[str, Any] = {"GROUPS": MIX_GROUPS}
    (types if base else constants)["base"] = "*fp32" if base else None
    for i in range(4):
        pointer, largest = WIRE[kinds[i]] if i < len(kinds) else (None, 0)
        constants[f"LARGEST_{i}"] = largest
        (types if pointer else constants)[f"values_{i}"] = pointer
        (types if largest else constants)[f"scales_{i}"] = "*fp32" if largest else None
    variant = f"{' + '.join(kinds)}{', with base' if base else ''}"
    return Case("mix", variant, mix_kernel, types, constants)


def _copy(dtype: str, *, gather: bool) -> Case:
    types = {"source": f"*{dtype}", "target": f"*{dtype}", "tiles": "*i64"}
    variant = f"{'gather' if gather else 'scatter'}, {dtype}"
    return Case("block_select", variant, copy_kernel, types, {"GATHER": gather, "TILE": TILE}, ragged=True)


def _squares(dtype: str) -> Case:
    types = {"x": f"*{dtype}", "tiles": "*i64", "sums": "*fp32"}
    return Case("block_select", f"squares, {dtype}", squares_kernel, types, {"TILE": TILE}, ragged=True)


def _symmetric_product(variant: str, dtype: str = "fp16", *, side: int = 128, inner: int = 4096) -> Case:
    types = {
        "left": f"*{dtype}", "right": f"*{dtype}", "out": f"*{dtype}", "alpha": "fp32", "beta": "fp32", "rows": "i32",
        "matrix_stride": "i32", "row_stride": "i32", "inner_stride": "i32",
    }  # fmt: skip
    constants: dict[str, Any] = {"INNER": inner, "SIDE": side, "DEPTH": 64}
    # A stride of 1 is a constant to Triton.
    constants["row_stride" if variant == "tall" else "inner_stride"] = 1
    (types if variant == "plus another" else constants)["add"] = f"*{dtype}" if variant == "plus another" else None
    divisible = ("rows", "matrix_stride", "row_stride", "inner_stride")
    return Case(
        "newton_schulz", f"symmetric product, {variant}, {dtype}, {side}", symmetric_product_kernel, types, constants,
        products=True, warps=8 if side == 128 else 4, stages=4, divisible=divisible,
    )  # fmt: skip


def _dot(polar: str | None) -> Case:
    types = {"matrices": "*fp32", "peaks": "*fp32", "partials": "*fp32", "n": "i32"}
    constants: dict[str, Any] = {"BLOCK": BLOCK}
    (types if polar else constants)["polar"] = f"*{polar}" if polar else None
    variant = f"dot with {polar}" if polar else "norm"
    return Case("newton_schulz", variant, dot_kernel, types, constants, stages=1)


def _scale(source: str, out: str) -> Case:
    types = {"source": f"*{source}", "factors": "*fp32", "out": f"*{out}", "n": "i32"}
    constants: dict[str, Any] = {"BLOCK": BLOCK}
    (types if source == "fp32" else constants)["divisors"] = "*fp32" if source == "fp32" else None
    return Case("newton_schulz", f"scale, {source} to {out}", scale_kernel, types, constants, stages=1)


CASES = [
    *(_quantize(kind, stochastic=stochastic) for kind in ("int8", "int4") for stochastic in (False, True)),
    *(_dequantize(kind) for kind in ("int8", "int4")),
    *(_pseudo_gradient("fp32", kind) for kind in WIRE),
    _pseudo_gradient("bf16", "bf16"),
    _pseudo_gradient("fp32", "int8", feedback=True),
    *(_outer_step(kind, 1) for kind in WIRE),
    _outer_step("int8", 8),
    _mix(("fp32", "fp32"), base=False),
    _mix(("fp32", "fp32", "fp32"), base=False),
    _mix(("int8", "int8"), base=True),
    *(_copy(dtype, gather=gather) for dtype in ("fp32", "bf16") for gather in (True, False)),
    *(_squares(dtype) for dtype in ("fp32", "bf16")),
    *(_symmetric_product(variant) for variant in ("wide", "tall", "plus another")),
    _symmetric_product("plus another", "bf16"),
    _symmetric_product("wide", side=64, inner=256),
    _dot(None),
    _dot("fp16"),
    _scale("fp32", "fp16"),
    _scale("fp16", "fp32"),
]
