"""Device code that the memory-bound kernels share: tiles of whole groups, and the wire formats.

A program works on GROUPS groups of 128 elements as two tiles [GROUPS, 64], the lower and the upper half of each group,
which is what planar int4 packs into bytes. Arithmetic is fp32 whatever is loaded and stored: bf16 arithmetic would
round in every operation. A program that lies inside the buffer loads and stores without masks, since a mask that is not
known to be a multiple of 16 costs the 128-bit accesses.
"""

from __future__ import annotations

import triton
import triton.language as tl

from loco_kernels import random, wire

_GROUP = tl.constexpr(wire.GROUP)
_HALF = tl.constexpr(wire.GROUP // 2)
_SMALLEST = tl.constexpr(wire.SMALLEST)
_HUGE = tl.constexpr(wire.HUGE)
_GAMMA = tl.constexpr(random.GAMMA % 2**64)
_MULTIPLIER_1, _MULTIPLIER_2 = (tl.constexpr(m % 2**64) for m in random.MULTIPLIERS)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = map(tl.constexpr, random.SHIFTS)
# Adding and taking away 1.5 * 2**23 rounds an fp32 below 2**22 to an integer, half to even.
_ROUNDING = tl.constexpr(12582912.0)


@triton.jit
def first_of_program(GROUPS: tl.constexpr):
    """First element, int64: a buffer may have more than 2**31."""
    return tl.program_id(0).to(tl.int64) * (GROUPS * _GROUP)


@triton.jit
def lower_half(start, GROUPS: tl.constexpr):
    """Places of the lower half of each group, [GROUPS, 64]; the upper one lies 64 further."""
    return start + tl.arange(0, GROUPS)[:, None] * _GROUP + tl.arange(0, _HALF)[None, :]


@triton.jit
def load(pointer, at, n, whole):
    """fp32; 0 behind the end."""
    if whole:
        value = tl.load(pointer + at)
    else:
        value = tl.load(pointer + at, mask=at < n, other=0)
    return value.to(tl.float32)


@triton.jit
def store(pointer, at, value, n, whole):
    value = value.to(pointer.dtype.element_ty)
    if whole:
        tl.store(pointer + at, value)
    else:
        tl.store(pointer + at, value, mask=at < n)


@triton.jit
def non_finite(value):
    """int32: 1 where an element is NaN or infinite."""
    return (~(tl.abs(value) < float("inf"))).to(tl.int32)


@triton.jit
def group_scale(low, high, LARGEST: tl.constexpr):
    """fp32 [GROUPS]: 0 for a group that is sent as zeros, NaN for one that is sent as NaN."""
    most = tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1))
    # By a count, since a GPU's max drops NaN.
    bad_low = tl.sum((~(tl.abs(low) <= _HUGE)).to(tl.int32), axis=1)
    bad_high = tl.sum((~(tl.abs(high) <= _HUGE)).to(tl.int32), axis=1)
    scale = tl.where(most < _SMALLEST, 0.0, tl.div_rn(most, tl.zeros_like(most) + LARGEST))
    return tl.where(bad_low + bad_high > 0, float("nan"), scale)


@triton.jit
def to_integers(value, scale, at, key, LARGEST: tl.constexpr, STOCHASTIC: tl.constexpr):
    """int32 [GROUPS, 64] within +-LARGEST; 0 where the scale is 0 or NaN."""
    used = scale > 0
    exact = tl.div_rn(tl.where(used, value, 0.0), tl.where(used, scale, 1.0) + tl.zeros_like(value))
    if STOCHASTIC:
        rounded = tl.floor(exact + uniform(at, key))
    else:
        rounded = (exact + _ROUNDING) - _ROUNDING
    return tl.minimum(tl.maximum(rounded, -LARGEST), LARGEST).to(tl.int32)


@triton.jit
def uniform(at, key):
    """See `loco_kernels.random.uniform`."""
    x = at.to(tl.uint64) * _GAMMA + key.to(tl.uint64)
    x = (x ^ (x >> _SHIFT_1)) * _MULTIPLIER_1
    x = (x ^ (x >> _SHIFT_2)) * _MULTIPLIER_2
    x = x ^ (x >> _SHIFT_3)
    return (x >> 40).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def encode(
    values,
    scales,
    low,
    high,
    start,
    n,
    whole,
    key,
    LARGEST: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Store two tiles in a wire format (LARGEST: 127 int8, 7 int4, 0 plain); what a receiver will read of them."""
    at = lower_half(start, GROUPS)
    # One return: Triton compiles what follows a return inside of an `if` of constants.
    if LARGEST == 0:
        kind: tl.constexpr = values.dtype.element_ty
        store(values, at, low, n, whole)
        store(values, at + _HALF, high, n, whole)
        low = low.to(kind).to(tl.float32)
        high = high.to(kind).to(tl.float32)
    else:
        scale = group_scale(low, high, LARGEST)
        group = start // _GROUP + tl.arange(0, GROUPS)
        tl.store(scales + group, scale, mask=group * _GROUP < n)
        column = scale[:, None]
        low_integer = to_integers(low, column, at, key, LARGEST, STOCHASTIC)
        high_integer = to_integers(high, column, at + _HALF, key, LARGEST, STOCHASTIC)
        if LARGEST == 7:
            packed = (low_integer & 15) | (high_integer << 4)
            store(values, _planar(start, GROUPS), packed, _planar_end(n), whole)
        else:
            store(values, at, low_integer, n, whole)
            store(values, at + _HALF, high_integer, n, whole)
        # Behind the end a group sent as NaN would count NaN of elements that there are not.
        low = tl.where(at < n, low_integer.to(tl.float32) * column, 0.0)
        high = tl.where(at + _HALF < n, high_integer.to(tl.float32) * column, 0.0)
    return low, high


@triton.jit
def decode(values, scales, start, n, whole, LARGEST: tl.constexpr, GROUPS: tl.constexpr):
    """Two fp32 tiles of a wire format; 0 behind the end."""
    at = lower_half(start, GROUPS)
    if LARGEST == 7:
        packed = load(values, _planar(start, GROUPS), _planar_end(n), whole).to(tl.int32)
        # To the left, then to the right with the sign.
        low = ((packed << 28) >> 28).to(tl.float32)
        high = ((packed << 24) >> 28).to(tl.float32)
    else:
        low = load(values, at, n, whole)
        high = load(values, at + _HALF, n, whole)
    if LARGEST != 0:
        group = start // _GROUP + tl.arange(0, GROUPS)
        column = tl.load(scales + group, mask=group * _GROUP < n, other=0.0)[:, None]
        low = low * column
        high = high * column
    return low, high


@triton.jit
def _planar(start, GROUPS: tl.constexpr):
    """Places of the bytes of int4, [GROUPS, 64]."""
    return start // 2 + tl.arange(0, GROUPS)[:, None] * _HALF + tl.arange(0, _HALF)[None, :]


@triton.jit
def _planar_end(n):
    """Bytes of int4: the last group is stored whole."""
    return tl.cdiv(n, _GROUP) * _HALF
