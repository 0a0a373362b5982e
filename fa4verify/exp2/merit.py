"""The figures that a fit minimises, of the real fp32 FMA evaluation, over every fraction that occurs.

Contract: `merit` walks all fractions k/2^24 of the interval, ends included: 2^24 + 1 numbers, uniform in f. With
floor they are every fraction that a float32 x in [-126, 0] can have, 0 from integers and 1 from x in [-2^-25, 0); the
largest error also counts every x that shares a fraction: f = x - n rounds for x in (-1/2, 0), so that the exact
fraction may lie up to 2^-25 off (an odd k: one float32 step of x less). Reduction to nearest rounds nothing, and its
negative fractions are every float32 in [-1/2, 0): finer near 0, which the confirmation over all x sees.
2^f in float64 is the product of two table entries, each exact to half an ulp: 4e-16 at most, 1e-8 of degree 5's error.
Known failure mode: relative errors near 1 make the allowance for shared fractions, first order, off by that much.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from mpmath import mp, workdps
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.fma import fma
from fa4verify.exp2.targets import FORMATS

if TYPE_CHECKING:
    import numpy.typing as npt

UNIT = 2.0**-24
COUNT = 2**24 + 1
LN2 = float(np.log(2.0))
_LOW = 4096
_CUTS = tuple(np.uint64(53 - fmt.precision) for fmt in FORMATS.values())
_ONE, _NONE = np.uint64(1), np.uint64(0)


@dataclass(frozen=True)
class Merit:
    """Largest relative error, root mean square, signed mean, and the shares of results that differ in a format."""

    max: float
    rms: float
    bias: float
    bf16: float
    fp16: float
    e4m3: float

    def objective(self, name: str) -> float:
        """Return the figure as a fit minimises it: the mean by size."""
        return abs(float(getattr(self, name)))


@njit(cache=True)
def horner(f, coefficients, out):  # type: ignore[no-untyped-def]
    """Evaluate at each f: one FMA a step, innermost loop over f so that it vectorises."""
    degree = coefficients.size - 1
    for i in range(out.size):
        out[i] = coefficients[degree]
    for k in range(degree - 1, -1, -1):
        c = coefficients[k]
        for i in range(out.size):
            out[i] = fma(out[i], f[i], c)


@njit(cache=True)
def _differ(p, true, cut):  # type: ignore[no-untyped-def]
    """Count where two float64 arrays round to different numbers of 53 - cut significant bits."""
    count = _NONE
    half = (_ONE << (cut - _ONE)) - _ONE
    for i in range(p.size):
        a, b = bits_of(p[i]), bits_of(true[i])
        a = (a + half + ((a >> cut) & _ONE)) >> cut
        b = (b + half + ((b >> cut) & _ONE)) >> cut
        count += _ONE if a != b else _NONE
    return np.int64(count)


@njit(cache=True, fastmath={"reassoc", "nsz"})
def moments(e, allowance):  # type: ignore[no-untyped-def]
    """Return the largest |e| + allowance, the sum and the sum of squares; the order of adding is free.

    The largest is found among bits, whose order is that of sizes with NaN above all: as floats it is four times slower.
    """
    worst, total, squares = np.int64(0), 0.0, 0.0
    for i in range(e.size):
        size = np.int64(bits_of(abs(e[i]) + allowance[i]))
        worst = size if size > worst else worst
    for i in range(e.size):
        total += e[i]
        squares += e[i] * e[i]
    return float_of(worst, 1.0), total, squares


@njit(cache=True)
def _allow(start, stride, allowance):  # type: ignore[no-untyped-def]
    """Fill in, for fractions k/2^24 from `start` on, how far 2^x goes from 2^f while x shares the fraction f.

    x = f - 1 + d gives f for |d| <= 2^-25, the ends only where k is even (ties to even); next to an end comes one step
    of x, 2^-25 for x in [-1/2, -1/4) and half of that in each octave toward zero. Blocks begin at octaves of x; with a
    stride above 1 every k is even.
    """
    inside = 2.0**-25
    step = 2.0 ** (np.ceil(np.log2(1.0 - start * UNIT)) - 24.0) if start < 2**24 else 0.0
    for i in range(0, allowance.size, 2):
        allowance[i] = inside * LN2
        if i + 1 < allowance.size:
            allowance[i + 1] = (max(inside - step, 0.0) if stride == 1 else inside) * LN2


@njit(cache=True)
def _one_sided(k, e, allowance):  # type: ignore[no-untyped-def]
    """Withdraw the allowance where it exists on one side only: x = -1/2 has none below, f = 1 none above."""
    if (k == 2**23 and e > 0.0) or (k == 2**24 and e < 0.0):
        return 0.0
    return allowance


@njit(cache=True, nogil=True)
def _walk(coefficients, first, stride, high, low, floor, shares, peaks):  # type: ignore[no-untyped-def]
    """Return largest, sum, sum of squares and counts over k = first, first + stride, ...; fill in blocks' worst k."""
    worst, total, squares = 0.0, 0.0, 0.0
    counts = np.zeros(3, np.int64)
    f, p32 = np.empty(_LOW, np.float32), np.empty(_LOW, np.float32)
    p, true, e, allowance = np.empty(_LOW), np.empty(_LOW), np.empty(_LOW), np.zeros(_LOW)
    for block in range(high.size):
        start = first + block * _LOW * stride
        size = _LOW if block < high.size - 1 else 1  # the last block is the right end alone
        for i in range(size):
            f[i] = np.float32((start + i * stride) * UNIT)
        horner(f[:size], coefficients, p32[:size])
        for i in range(size):
            p[i] = np.float64(p32[i])
            true[i] = high[block] * low[i]
            e[i] = p[i] / true[i] - 1.0
        if floor and start >= 2**23:
            _allow(start, stride, allowance)
            allowance[0] = _one_sided(start, e[0], allowance[0])
        largest, s, s2 = moments(e[:size], allowance[:size])
        worst = max(worst, largest)
        total += s
        squares += s2
        if shares:
            for j in range(3):
                counts[j] += _differ(p[:size], true[:size], _CUTS[j])
        if peaks.size > block:
            peaks[block] = start + stride * np.argmax(np.abs(e[:size]) + allowance[:size])
    return worst, total, squares, counts


@cache
def _tables(first: int, stride: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return 2^(block's first fraction) and 2^(k/2^24) within a block."""
    with workdps(30):
        high = [float(mp.power(2, mp.ldexp(first + block * _LOW * stride, -24))) for block in range(_LOW // stride + 1)]
        low = [float(mp.power(2, mp.ldexp(i * stride, -24))) for i in range(_LOW)]
    return np.array(high), np.array(low)


def first_fraction(floor: bool) -> int:
    """Return the lowest k of the fractions k/2^24."""
    return 0 if floor else -(2**23)


def _walked(
    coefficients: npt.ArrayLike, floor: bool, over_x: bool, stride: int, shares: bool, peaks: npt.NDArray[np.int64]
) -> Any:
    first = first_fraction(floor)
    values, tables = np.asarray(coefficients, np.float32), _tables(first, stride)
    return _walk(values, first, stride, *tables, floor and over_x, shares, peaks)


def merit(
    coefficients: npt.ArrayLike, *, floor: bool = True, over_x: bool = True, stride: int = 1, shares: bool = True
) -> Merit:
    """Return the figures of float32 coefficients, constant first, over all 2^24 + 1 fractions (100 ms).

    Parameters
    ----------
    coefficients
        p0 ... pd.
    floor
        Range reduction: f in [0, 1], else in [-1/2, 1/2].
    over_x
        The largest error counts every x that shares a fraction; without it 2^f alone.
    stride
        A power of two up to 4096: only every so many fractions, for a first look.
    shares
        Count the formats' shares, which takes half of the time; else they are 0.
    """
    empty = np.empty(0, np.int64)
    worst, total, squares, counts = _walked(coefficients, floor, over_x, stride, shares, empty)
    n = 2**24 // stride + 1
    return Merit(worst, float(np.sqrt(squares / n)), total / n, *(float(c) / n for c in counts))


def fractions(k: npt.NDArray[np.int64], shared: bool) -> tuple[Any, Any, Any]:
    """Return f as float32, 2^-f and, where x `shared` them, the allowance of fractions k/2^24 but the one-sided two."""
    f = k * UNIT
    allowance = np.zeros(k.size)
    if shared:
        with np.errstate(divide="ignore"):
            step = np.where(k < 2**24, np.exp2(np.ceil(np.log2(1.0 - f)) - 24.0), 0.0)
        allowed = np.where(k % 2 == 0, 2.0**-25, np.maximum(2.0**-25 - step, 0.0)) * LN2
        allowance = np.where((k > 2**23) & (k < 2**24), allowed, 0.0)
    return f.astype(np.float32), np.exp2(-f), allowance


def hard_fractions(
    coefficients: npt.ArrayLike, count: int, *, floor: bool = True, over_x: bool = True
) -> npt.NDArray[np.int64]:
    """Return the k of the worst fractions of `count` blocks of 4096 fractions, the worst first."""
    peaks = np.zeros(_LOW + 1, np.int64)
    _walked(coefficients, floor, over_x, 1, False, peaks)
    f, inverse, allowance = fractions(peaks, floor and over_x)
    p = np.empty(f.size, np.float32)
    horner(f, np.asarray(coefficients, np.float32), p)
    return np.asarray(peaks[np.argsort(-(np.abs(p * inverse - 1.0) + allowance))][:count])
