"""2^x of any coefficient set in FA4's arithmetic, over consecutive float32 bit patterns and over arrays.

Contract: the bits of `arithmetic.exp2` for floor reduction (tests/exp2/test_evaluate.py compares 2^24 stratified inputs
and every kind of special); for reduction to nearest the same recipe with the addition of the magic number rounded to
nearest (add.rn), f in [-1/2, 1/2]. `ftz` chooses FA4's scalar form, which differs for negative subnormal x alone.
Known failure modes are the device's and kept: docs/fa4.md, exp2.
Speed: all 2^32 inputs in 0.9 s on one core with AVX-512 (benchmarks/test_exp2.py holds it against a C loop).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.exp2 import ex2_emulation, ex2_emulation_ftz, float32_coefficients
from fa4verify.arithmetic.fma import float32_operands, flush, fma
from fa4verify.exp2.lanes import LANES, fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from fa4verify.exp2.sets import RangeReduction

_MAGIC = np.float32(2.0**23 + 2.0**22)
_LOWEST = np.float32(-127.0)
_SHIFT = np.uint32(23)
_LIKE = np.float32(0.0)
_SUBNORMAL_FIRST, _SUBNORMAL_END = 0x80000001, 0x80800000  # the negative ones, which ftz changes


@njit(cache=True)
def evaluate_one(x, coefficients, nearest, ftz):  # type: ignore[no-untyped-def]
    """Return 2^x of a float32 scalar; `coefficients` a float32 array, constant first."""
    if not nearest:
        return ex2_emulation_ftz(x, coefficients) if ftz else ex2_emulation(x, coefficients)
    y = x if x > _LOWEST else _LOWEST
    shifted = (flush(y) if ftz else y) + _MAGIC
    fraction = y - (shifted - _MAGIC)
    p = coefficients[len(coefficients) - 1]
    for k in range(len(coefficients) - 2, -1, -1):
        p = fma(p, fraction, coefficients[k])
    return float_of((bits_of(shifted) << _SHIFT) + bits_of(p), x)


@njit(cache=True)
def float_at(code):  # type: ignore[no-untyped-def]
    """Return the float32 with these bits, given as any integer."""
    return float_of(np.int64(code), _LIKE)


@njit(cache=True, nogil=True)
def evaluate_into(out, offset, first, stride, count, coefficients, nearest, ftz):  # type: ignore[no-untyped-def]
    """Write 2^x for the `count` bit patterns first, first + stride, ... to out[offset:]; patterns wrap at 2^32."""
    vectors = count // LANES
    fill(out, offset, first, stride, vectors, coefficients, len(coefficients) - 1, nearest)
    for i in range(vectors * LANES, count):
        out[offset + i] = evaluate_one(float_at(first + i * stride), coefficients, nearest, ftz)
    if ftz and first < _SUBNORMAL_END and first + (count - 1) * stride >= _SUBNORMAL_FIRST:
        begin = max(0, -((first - _SUBNORMAL_FIRST) // stride))
        end = min(count, (_SUBNORMAL_END - 1 - first) // stride + 1)
        for i in range(begin, end):
            out[offset + i] = evaluate_one(float_at(first + i * stride), coefficients, nearest, ftz)


@njit(cache=True)
def _each(x, out, coefficients, nearest, ftz):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = evaluate_one(x[i], coefficients, nearest, ftz)


def evaluate_bits(
    first: int,
    count: int,
    coefficients: Sequence[float],
    range_reduction: RangeReduction = "floor",
    *,
    stride: int = 1,
    ftz: bool = False,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Return 2^x for the inputs with the bits first, first + stride, ...

    Parameters
    ----------
    first
        Bits of the first input; the last, first + (count - 1) * stride, is at most 2^32 - 1 as well.
    count
        Number of inputs.
    coefficients
        p0 ... pd, d at most 7; ValueError unless float32 holds each.
    range_reduction
        "floor" or "nearest".
    stride
        Distance of the bits of successive inputs.
    ftz
        FA4's scalar form instead of the packed one.
    out
        Contiguous float32 of at least `count` elements to write to, so that a loop need not allocate.

    Returns
    -------
    ndarray
        float32 (count,).
    """
    if first < 0 or count < 0 or stride < 1 or first + max(count - 1, 0) * stride >= 2**32:
        raise ValueError(f"no such bit patterns: first {first}, count {count}, stride {stride}")
    values = _coefficients(coefficients)
    result = np.empty(count, np.float32) if out is None else out[:count]
    evaluate_into(result, 0, first, stride, count, values, range_reduction == "nearest", ftz)
    return result


def evaluate(
    x: npt.ArrayLike, coefficients: Sequence[float], range_reduction: RangeReduction = "floor", *, ftz: bool = False
) -> npt.NDArray[np.float32]:
    """Return 2^x of a float32 array of any shape; slower than `evaluate_bits`, for inputs that do not follow a rule."""
    (values,) = float32_operands(x)
    out = np.empty(values.size, np.float32)
    _each(values.reshape(-1), out, _coefficients(coefficients), range_reduction == "nearest", ftz)
    return out.reshape(values.shape)


def _coefficients(coefficients: Sequence[float]) -> npt.NDArray[np.float32]:
    values = float32_coefficients(coefficients)
    if values.size > 8:
        raise ValueError(f"degree {values.size - 1}: at most 7")
    return values
