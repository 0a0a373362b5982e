"""Tensor-core matrix multiply, bit for bit.

Contract: one step takes `k_step` products and the accumulator c. A product is exact, with the unnormalised exponent
ea + eb (a subnormal operand has the exponent emin and a significand below 1). All terms, c included, are aligned to
the largest exponent among the non-zero ones (at least `exponent_floor`), each truncated toward zero to
`fraction_bits` fractional bits, added exactly, and the sum is truncated toward zero to fp32. Steps are chained
along K. An exact zero is +0, whatever the signs of its terms.

Non-finite operands: NaN, inf * 0 and inf - inf give NaN (0x7fffffff), else an infinite product or c gives that
infinity. Finite operands: the sum is exact however large, so products beyond fp32 may cancel; a truncated sum of
2^128 or more is infinite.

For kernels (njit, single-threaded; A and B are prepared once and used many times; K is a multiple of k_step, zeros
as padding are exact):

    step = ARCHITECTURES["sm90"].step("bf16")
    A = prepare_a(a, step)            # a float32 (M, K), C-contiguous, values of the dtype
    B = prepare_b(b, step)            # b float32 (K, N), C-contiguous
    accumulate(A, B, C, use_c, step)  # C float32 (M, N), C-contiguous: C = (C if use_c else 0) + a.b, in place

Fails first where a small addend sits just below the cut: tests/arithmetic/test_mma.py.
Numbers: MMA-Sim (arXiv:2511.10909) and Khattak and Mikaitis (arXiv:2512.07004); the sm90 16-bit row equals H200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

ZERO_EXPONENT = -100_000  # what a zero operand has instead of an exponent: never the largest
SPECIAL_EXPONENT = 10_000  # inf and NaN
CANONICAL_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


class Step(NamedTuple):
    """The integers that rule one step; `emin` belongs to the operands, `output_bits` are the fraction bits kept."""

    k_step: int
    fraction_bits: int
    exponent_floor: int
    output_bits: int
    emin: int


class Left(NamedTuple):
    """Left operand: values, their exponents."""

    values: np.ndarray
    exponents: np.ndarray


class Right(NamedTuple):
    """Right operand: values, their exponents."""

    values: np.ndarray
    exponents: np.ndarray


EMIN = {"bf16": -126, "fp16": -14, "e4m3": -6, "e5m2": -14}


@dataclass(frozen=True)
class Architecture:
    """One row: K, F and floor of a step for 16-bit and for 8-bit operands (None: no such instruction)."""

    name: str
    k_step: int
    fraction_bits: int
    exponent_floor: int
    k_step_fp8: int | None = None
    fraction_bits_fp8: int | None = None
    output_bits_fp8: int = 23

    def step(self, dtype: str) -> Step:
        """Integers of one step on operands of `dtype`."""
        if dtype not in EMIN:
            raise ValueError(f"dtype {dtype!r}: expected one of {', '.join(EMIN)}")
        if dtype in ("bf16", "fp16"):
            return Step(self.k_step, self.fraction_bits, self.exponent_floor, 23, EMIN[dtype])
        if self.k_step_fp8 is None or self.fraction_bits_fp8 is None:
            raise ValueError(f"{self.name} has no {dtype} tensor-core instruction")
        return Step(self.k_step_fp8, self.fraction_bits_fp8, self.exponent_floor, self.output_bits_fp8, EMIN[dtype])


ARCHITECTURES = {
    row.name: row
    for row in (
        Architecture("sm80", 8, 24, -132),
        Architecture("sm89", 8, 24, -132, 16, 13, 13),
        Architecture("sm90", 16, 25, -133, 32, 13, 13),
        Architecture("sm100", 16, 25, -133, 32, 25),
    )
}


@numba.njit(cache=True)
def _exponent(x, emin):
    if not math.isfinite(x):
        return SPECIAL_EXPONENT
    if x == 0.0:
        return ZERO_EXPONENT
    return max(math.frexp(x)[1] - 1, emin)


@numba.njit(cache=True)
def prepare_a(a, step):
    """Left operand (M, K) for `accumulate`."""
    exponents = np.empty(a.shape, np.int32)
    for m in range(a.shape[0]):
        for k in range(a.shape[1]):
            exponents[m, k] = _exponent(a[m, k], step.emin)
    return Left(a, exponents)


@numba.njit(cache=True)
def prepare_b(b, step):
    """Right operand (K, N) for `accumulate`."""
    exponents = np.empty(b.shape, np.int32)
    for k in range(b.shape[0]):
        for n in range(b.shape[1]):
            exponents[k, n] = _exponent(b[k, n], step.emin)
    return Right(b, exponents)


@numba.njit(cache=True)
def _step(a, ea, b, eb, c, step):
    """One step of one element, all in float64 and int64: the plain statement of the rule."""
    special = 0.0
    largest = _exponent(c, -126)
    for k in range(step.k_step):
        largest = max(largest, ea[k] + eb[k])
        special += np.float64(a[k]) * np.float64(b[k])
    special += np.float64(c)
    if not math.isfinite(special):
        return np.float32(special) if math.isinf(special) else CANONICAL_NAN
    largest = max(largest, step.exponent_floor)
    shift = step.fraction_bits - largest
    total = np.int64(math.ldexp(np.float64(c), shift))
    for k in range(step.k_step):
        total += np.int64(math.ldexp(np.float64(a[k]) * np.float64(b[k]), shift))
    exact = math.ldexp(np.float64(total), -shift)
    fraction, exponent = math.frexp(exact)
    kept = max(exponent - 1, -126) - step.output_bits  # weight of the last bit kept
    truncated = math.ldexp(np.float64(np.int64(math.ldexp(exact, -kept))), kept)
    return np.float32(truncated)  # exact, or inf from 2^128 on


@numba.njit(cache=True)
def accumulate(A, B, C, use_c, step):
    """C[M, N] = (C if use_c else 0) + A.B in chained steps, in place."""
    K = A.values.shape[1]
    for m in range(C.shape[0]):
        for n in range(C.shape[1]):
            c = C[m, n] if use_c else np.float32(0.0)
            for k in range(0, K, step.k_step):
                end = k + step.k_step
                c = _step(
                    A.values[m, k:end], A.exponents[m, k:end], B.values[k:end, n], B.exponents[k:end, n], c, step
                )
            C[m, n] = c


def matmul(a, b, c=None, *, architecture="sm90", dtype="bf16"):
    """C + A.B as the tensor cores of `architecture` compute it."""
    step = ARCHITECTURES[architecture].step(dtype)
    a = np.ascontiguousarray(a, np.float32)
    b = np.ascontiguousarray(b, np.float32)
    out = np.zeros((a.shape[0], b.shape[1]), np.float32) if c is None else np.array(c, np.float32)
    accumulate(prepare_a(a, step), prepare_b(b, step), out, c is not None, step)
    return out
