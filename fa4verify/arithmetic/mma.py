"""Tensor-core matrix multiply, bit for bit.

Contract: one step takes `k_step` products and the accumulator c. A product is exact, with the unnormalised exponent
ea + eb (a subnormal operand has the exponent emin and a significand below 1). All terms, c included, are aligned to
the largest exponent among the non-zero ones (at least `exponent_floor`), each truncated toward zero to
`fraction_bits` fractional bits, added exactly, and the sum is truncated toward zero to fp32 (fp8 on sm89 and sm90: to
13 fraction bits). Steps are chained along K. A zero sum is +0, whatever the signs of its terms.

Non-finite operands: NaN, inf * 0 and inf - inf give the NaN 0x7fffffff, else an infinite product or c gives that
infinity. Finite operands: the sum is exact however large, so products beyond fp32 may cancel; a truncated sum of
2^128 or more is infinite, below it the largest finite number.

For kernels (njit, single-threaded; prepare A and B once, use them many times; K is a multiple of k_step, zeros as
padding are exact; what prepare_a is given must not change before the last accumulate):

    step = ARCHITECTURES["sm90"].step("bf16")
    A = prepare_a(a, step)            # a float32 (M, K) holding values of the dtype
    B = prepare_b(b, step)            # b float32 (K, N)
    accumulate(A, B, C, use_c, step)  # C float32 (M, N), in place: (C if use_c else 0) + a.b

Fails first where a small addend sits just below the cut: tests/arithmetic/test_mma.py. Slow, with the same bits, where
the largest exponent of a step is below -100 or above 127 or operands spread over 99 binades against each other
(mma_lanes.py says why): those elements go one by one, some hundred times slower.
numba does not see when a module it has inlined from changes: after an edit here, delete the callers' __pycache__.
Numbers: MMA-Sim (arXiv:2511.10909) and Khattak and Mikaitis (arXiv:2512.07004); infinities, NaN, overflow, subnormals
and signed zero as the hardware tests of MMA-Sim (microsoft/MMA-Sim, tests/nv) assert them; the sm90 16-bit row
reproduces recorded H200 outputs of FA4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit, prange

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.arithmetic.mma_lanes import LANES, LOWEST_PRODUCT, ROWS, SPECIAL, ZERO, step_lanes

if TYPE_CHECKING:
    import numpy.typing as npt

_NO_NUMBER = np.int32(-1000)  # below every exponent
_NAN = np.uint32(0x7FFFFFFF).view(np.float32)
_ROW_BLOCK = 64  # rows a thread of `matmul` takes at a time


class Step(NamedTuple):
    """The integers that rule one step; `output_bits` fraction bits are kept, `emin` belongs to the operands."""

    k_step: int
    fraction_bits: int
    exponent_floor: int
    output_bits: int
    emin: int


@dataclass(frozen=True)
class Architecture:
    """Integers of one GPU generation: terms in a step, F and floor, and those of fp8 operands where it has them."""

    name: str
    k_step: int
    fraction_bits: int
    exponent_floor: int
    fp8_k_step: int = 0
    fp8_fraction_bits: int = 0
    fp8_output_bits: int = 23

    def step(self, dtype: str) -> Step:
        """Integers of one step on operands of `dtype`."""
        if dtype in ("bf16", "fp16"):
            return Step(self.k_step, self.fraction_bits, self.exponent_floor, 23, FORMATS[dtype].emin)
        if dtype not in ("e4m3", "e5m2"):
            raise ValueError(f"dtype {dtype!r}: expected bf16, fp16, e4m3 or e5m2")
        if not self.fp8_k_step:
            raise ValueError(f"dtype {dtype!r}: the tensor cores of {self.name} do not take it")
        return Step(
            self.fp8_k_step, self.fp8_fraction_bits, self.exponent_floor, self.fp8_output_bits, FORMATS[dtype].emin
        )


ARCHITECTURES = {
    row.name: row
    for row in (
        Architecture("sm80", 8, 24, -132),
        Architecture("sm89", 8, 24, -132, 16, 13, 13),
        Architecture("sm90", 16, 25, -133, 32, 13, 13),
        Architecture("sm100", 16, 25, -133, 32, 25, 23),
    )
}


class Left(NamedTuple):
    """Prepared (M, K) operand: as given, scaled per row and step, exponents after scaling, scales; rows padded."""

    source: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32]
    exponents: npt.NDArray[np.int32]
    scales: npt.NDArray[np.int32]


class Right(NamedTuple):
    """Prepared (K, N) operand in panels (panel, K, LANES), exponents, and the largest of each panel and step."""

    values: npt.NDArray[np.float32]
    exponents: npt.NDArray[np.int32]
    largest: npt.NDArray[np.int32]


@njit(cache=True)
def _exponent(x, emin):  # type: ignore[no-untyped-def]
    """Unnormalised exponent of an operand held in float32; ZERO for 0, SPECIAL for inf and NaN."""
    bits = np.int32(bits_of(np.float32(x)))
    field = np.int32((bits >> np.int32(23)) & np.int32(255))
    exponent = max(np.int32(field - np.int32(127)), np.int32(emin))
    exponent = np.int32(SPECIAL) if field == np.int32(255) else exponent
    return np.int32(ZERO) if np.int32(bits << np.int32(1)) == np.int32(0) else exponent


@njit(cache=True)
def _scale_row(row, scales, values, exponents):  # type: ignore[no-untyped-def]
    for k in range(row.size):
        factor = float_of(np.uint32(np.int32(np.int32(127) - scales[k]) << np.int32(23)), np.float32(0.0))
        values[k] = row[k] * factor
    for k in range(row.size):
        exponents[k] = np.int32(exponents[k] - scales[k])


@njit(cache=True)
def prepare_a(a, step):  # type: ignore[no-untyped-def]
    """Left operand for `accumulate`; a float32 (M, K), K a multiple of step.k_step."""
    M, K = a.shape
    steps = K // step.k_step
    padded = (M + ROWS - 1) // ROWS * ROWS
    values = np.zeros((padded, K), np.float32)
    exponents = np.full((padded, K), np.int32(ZERO), np.int32)
    scales = np.zeros((padded, steps), np.int32)
    scale_of_k = np.empty(K, np.int32)
    for m in range(M):
        for k in range(K):
            exponents[m, k] = _exponent(a[m, k], step.emin)
        for i in range(steps):
            top = _NO_NUMBER
            for k in range(i * step.k_step, (i + 1) * step.k_step):
                top = max(top, exponents[m, k] if exponents[m, k] < SPECIAL else _NO_NUMBER)
            # The largest lies in [1/2, 1): times b it cannot overflow. 126, not 128: 2^-scale stays normal, and a
            # product of the larger rest with b overflows only beyond the window.
            scales[m, i] = np.int32(min(int(top) + 1, 126)) if top > _NO_NUMBER else np.int32(0)
            scale_of_k[i * step.k_step : (i + 1) * step.k_step] = scales[m, i]
        _scale_row(a[m], scale_of_k, values[m], exponents[m])
    return Left(a, values, exponents, scales)


@njit(cache=True)
def prepare_b(b, step):  # type: ignore[no-untyped-def]
    """Right operand for `accumulate`; b float32 (K, N), K a multiple of step.k_step."""
    K, N = b.shape
    panels = (N + LANES - 1) // LANES
    values = np.zeros((panels, K, LANES), np.float32)
    exponents = np.full((panels, K, LANES), np.int32(ZERO), np.int32)
    largest = np.full((panels, K // step.k_step), _NO_NUMBER)
    for p in range(panels):
        for k in range(K):
            top = _NO_NUMBER
            for j in range(min(LANES, N - p * LANES)):
                exponent = _exponent(b[k, p * LANES + j], step.emin)
                values[p, k, j] = b[k, p * LANES + j]
                exponents[p, k, j] = exponent
                top = max(top, _NO_NUMBER if exponent == SPECIAL else exponent)
            largest[p, k // step.k_step] = max(largest[p, k // step.k_step], top)
    return Right(values, exponents, largest)


@njit(cache=True)
def _power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2^exponent in float64; a step needs -158 ... 266 and back, all normal."""
    return float_of(np.uint64(np.int64(1023 + exponent) << np.int64(52)), 0.0)


@njit(cache=True)
def step_element(a, b, c, step):  # type: ignore[no-untyped-def]
    """One step of one element as the contract says it, for any operands; a, b float32 (k_step,)."""
    special = np.float64(c)
    exponent = _exponent(c, -126)
    for k in range(step.k_step):
        special += np.float64(a[k]) * np.float64(b[k])  # finite unless a term is not: fp32 products fit float64
        exponent = max(exponent, np.int32(_exponent(a[k], step.emin) + _exponent(b[k], step.emin)))
    if math.isnan(special):
        return np.float32(_NAN)
    if math.isinf(special):
        return np.float32(special)
    shift = step.fraction_bits - max(exponent, step.exponent_floor)
    units = _power_of_two(shift)
    total = np.int64(np.float64(c) * units)
    for k in range(step.k_step):
        total += np.int64(np.float64(a[k]) * np.float64(b[k]) * units)  # exact, then cut
    exact = np.float64(total) * _power_of_two(-shift)  # fewer than 53 bits
    leading = np.int64((bits_of(exact) >> np.uint64(52)) & np.uint64(2047)) - 1023
    last = max(leading, -126) - step.output_bits  # exponent of the last bit kept
    return np.float32(np.float64(np.int64(exact * _power_of_two(-last))) * _power_of_two(last))


@njit(cache=True)
def accumulate_panel(A, B, c, p, rows, width, step):  # type: ignore[no-untyped-def]
    """Chain all steps onto one panel: c += A.B[panel p] in place, c float32 (rows of A.values, LANES)."""
    for i in range(A.values.shape[1] // step.k_step):
        start, end = i * step.k_step, (i + 1) * step.k_step
        lowest = LOWEST_PRODUCT + max(0, B.largest[p, i])
        for first in range(0, rows, ROWS):
            undone = step_lanes(A, B, c, first, p, start, lowest, step)
            if undone != 0:
                for r in range(min(ROWS, rows - first)):
                    for j in range(width):
                        if (undone >> np.uint64(r * LANES + j)) & np.uint64(1):
                            m = first + r
                            row, column = A.source[m, start:end], B.values[p, start:end, j]
                            c[m, j] = step_element(row, column, c[m, j], step)


@njit(cache=True)
def accumulate(A, B, C, use_c, step):  # type: ignore[no-untyped-def]
    """C = (C if use_c else 0) + A.B in place, in chained steps; C float32 (M, N)."""
    M, N = C.shape
    c = np.zeros((A.values.shape[0], LANES), np.float32)
    for p in range(B.values.shape[0]):
        width = min(LANES, N - p * LANES)
        for m in range(M):
            for j in range(width):
                c[m, j] = C[m, p * LANES + j] if use_c else np.float32(0.0)
        accumulate_panel(A, B, c, p, M, width, step)
        for m in range(M):
            for j in range(width):
                C[m, p * LANES + j] = c[m, j]


@njit(cache=True, parallel=True)
def _accumulate_blocks(a, B, C, use_c, step):  # type: ignore[no-untyped-def]
    # B comes prepared: numba cannot take a named tuple into a prange unless it is an argument or built there.
    for block in prange((a.shape[0] + _ROW_BLOCK - 1) // _ROW_BLOCK):
        rows = slice(block * _ROW_BLOCK, min((block + 1) * _ROW_BLOCK, a.shape[0]))
        accumulate(prepare_a(a[rows], step), B, C[rows], use_c, step)


def _matrix(name: str, x: npt.ArrayLike, dtype: str) -> npt.NDArray[np.float32]:
    """Check a matrix of values of `dtype` and hold it in float32."""
    wide = np.asarray(x)
    if wide.ndim != 2:
        raise ValueError(f"{name} has the shape {wide.shape}: expected a matrix")
    if wide.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"{name} is {wide.dtype}: expected float32 holding values of {dtype}")
    wide = wide.astype(np.float64) if wide.dtype == np.float16 else wide
    wrong = np.argwhere(~np.isnan(wide) & (round_to(wide, FORMATS[dtype]) != wide))
    if wrong.size:
        row, column = wrong[0]
        value = float(wide[row, column])
        raise ValueError(
            f"{name}[{row}, {column}] = {value!r} ({value.hex()}) is no {dtype} value ({len(wrong)} such): round first"
        )
    return np.ascontiguousarray(wide, np.float32)


def matmul(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike | None = None,
    *,
    architecture: str = "sm90",
    dtype: str = "bf16",
) -> npt.NDArray[np.float32]:
    """Compute c + a.b as the tensor cores of `architecture` do; rows in parallel.

    a (M, K) and b (K, N) hold values of `dtype`, c (M, N) of fp32; K is a multiple of the architecture's k_step.
    Raises ValueError for a name it does not know, shapes that do not fit and values that are not representable.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture {architecture!r}: expected one of {', '.join(ARCHITECTURES)}")
    step = ARCHITECTURES[architecture].step(dtype)
    A, B = _matrix("a", a, dtype), _matrix("b", b, dtype)
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"a {A.shape} and b {B.shape} do not fit: K differs")
    if A.shape[1] % step.k_step:
        raise ValueError(
            f"K = {A.shape[1]} is no multiple of {step.k_step}, the step of {architecture} on {dtype}: pad with zeros"
        )
    shape = (A.shape[0], B.shape[1])
    if c is None:
        C = np.zeros(shape, np.float32)
    else:
        C = _matrix("c", c, "fp32").copy()
        if C.shape != shape:
            raise ValueError(f"c {C.shape} does not fit a.b {shape}")
    if C.size:
        _accumulate_blocks(A, prepare_b(B, step), C, c is not None, step)
    return C
