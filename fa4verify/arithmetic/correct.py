"""2^x, 1/x and log2 x rounded to nearest in fp32, with the special cases and the flushing of the MUFU instructions.

Contract: the nearest float32, ties to even, for every float32; subnormal operands count as zero and subnormal results
become zero. The same bits on every machine: no call into a C library, whose exp2 and log2 differ by release.
How it is ensured: `exp2_pair` and `log2_pair` give the value as an unevaluated sum high + low with relative error
below 2^-57 (table entries exact to 2^-100 by integer roots and squarings, reduced argument exact, leading term in two
parts). tests/golden/rounding_margins.py walks every float32 and finds none closer to a rounding boundary than that, so
the nearest float32 of the pair is the nearest of the value. `1/x` is the processor's own division.
Fails first where the pair is rounded to float64 before float32: that goes wrong on ties that the low part breaks.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.fma import flush, fma64, two_sum

_GUARD = 256  # fraction bits of the integer arithmetic that fills the tables


def _pair(value: Fraction) -> tuple[float, float]:
    """Split a number into a float64 and the float64 of the rest."""
    high = float(value)
    return high, float(value - Fraction(high))


def _power_of_two(j: int) -> Fraction:
    """Return 2^(j/64) by six integer square roots."""
    root = 1 << (j + 64 * _GUARD)
    for _ in range(6):
        root = math.isqrt(root)
    return Fraction(root, 1 << _GUARD)


def _log2(value: Fraction) -> Fraction:
    """Return log2 of a number in [1/2, 2) to 120 bits, one bit a squaring."""
    exponent = -1 if value < 1 else 0
    x = (value.numerator << (_GUARD - exponent)) // value.denominator
    digits = 0
    for _ in range(120):
        x = (x * x) >> _GUARD
        carry = x >> (_GUARD + 1)
        digits, x = 2 * digits + carry, x >> carry
    return exponent + Fraction(digits, 1 << 120)


def _inverse(j: int) -> Fraction:
    """Return a 9-bit number near 1/m for the m with top fraction bits j, m halved from row 54 on; 1 next to 1."""
    if j in (0, 127):
        return Fraction(1)
    center = Fraction(2 * j + 257, 256) / (2 if j >= _HALVED else 1)
    return Fraction(round(256 / center), 256)


_HALVED = 54
_POWERS = [_pair(_power_of_two(j)) for j in range(64)]
_POWER_HIGH, _POWER_LOW = (np.array(column) for column in zip(*_POWERS, strict=True))
_INVERSES = [_inverse(j) for j in range(128)]
_INVERSE = np.array([float(inverse) for inverse in _INVERSES])
_LOGS = [_pair(-_log2(inverse)) for inverse in _INVERSES]
_LOG_HIGH, _LOG_LOW = (np.array(column) for column in zip(*_LOGS, strict=True))

# ln 2 and log2 e to 106 bits: 2 * atanh(1/3) and its inverse, in integers.
_LN2 = 2 * sum((Fraction(1, (2 * k + 1) * 3 ** (2 * k + 1)) for k in range(40)), Fraction(0))
_LN2_HIGH, _LN2_LOW = _pair(_LN2)
_LOG2E_HIGH, _LOG2E_LOW = _pair(1 / _LN2)
_EXP_TAIL = tuple(float(Fraction(1, math.factorial(k))) for k in range(2, 9))
_LOG_TAIL = tuple(float((-1) ** (k + 1) / (k * _LN2)) for k in range(2, 11))

_MIN_NORMAL = np.float32(2.0**-126)
_INF, _NAN, _ZERO, _ONE = np.float32(np.inf), np.float32(np.nan), np.float32(0.0), np.float32(1.0)
_TOP, _LOWEST = np.float32(128.0), np.float32(-126.0)


@njit(cache=True)
def round_pair(high, low):  # type: ignore[no-untyped-def]
    """Return high + low rounded once to float32; |low| is at most half an ulp of high.

    Rounding to odd first: a float64 whose last bit is even moves one step toward what was cut off, so that the second
    rounding sees that there was something.
    """
    bits = bits_of(high)
    if low != 0.0 and bits & np.uint64(1) == np.uint64(0):
        step = np.int64(1) if (low > 0.0) == (high > 0.0) else np.int64(-1)
        high = float_of(np.int64(bits) + step, high)
    return np.float32(high)


@njit(cache=True)
def exp2_pair(x):  # type: ignore[no-untyped-def]
    """Return n, high, low with 2^x = 2^n (high + low), for a float32 x in [-126, 128)."""
    k = math.floor(np.float64(x) * 64.0 + 0.5)
    r = np.float64(x) - k * 0.015625
    row = np.int64(k) & 63
    u = r * _LN2_HIGH
    u_low = fma64(r, _LN2_HIGH, -u) + r * _LN2_LOW
    tail = 0.0
    for i in range(len(_EXP_TAIL) - 1, -1, -1):
        tail = tail * u + _EXP_TAIL[i]
    p = u + (u_low + tail * u * u)
    high, low = two_sum(_POWER_HIGH[row], fma64(_POWER_HIGH[row], p, _POWER_LOW[row]))
    return np.int64(k) >> 6, high, low


@njit(cache=True)
def log2_pair(x):  # type: ignore[no-untyped-def]
    """Return high, low with log2 x = high + low, for a positive normal float32."""
    bits = np.int64(bits_of(x))
    exponent, fraction = (bits >> 23) - 127, bits & 0x7FFFFF
    row = fraction >> 16
    m = 1.0 + fraction * 2.0**-23
    if row >= _HALVED:
        exponent += 1
        m *= 0.5
    r = m * _INVERSE[row] - 1.0  # exact: 24 + 9 bits
    lead = r * _LOG2E_HIGH
    lead_low = fma64(r, _LOG2E_HIGH, -lead) + r * _LOG2E_LOW
    tail = 0.0
    for i in range(len(_LOG_TAIL) - 1, -1, -1):
        tail = tail * r + _LOG_TAIL[i]
    whole, error = two_sum(np.float64(exponent), _LOG_HIGH[row])
    high, error_of_lead = two_sum(whole, lead)
    return two_sum(high, error + error_of_lead + (_LOG_LOW[row] + lead_low + tail * r * r))


@njit(cache=True)
def ex2_correct(x):  # type: ignore[no-untyped-def]
    """Return 2^x of a float32 scalar, rounded to nearest, flushed."""
    if not (x >= _LOWEST and x < _TOP):
        return _ZERO if x < _LOWEST else (_INF if x >= _TOP else _NAN)
    n, high, low = exp2_pair(x)
    return round_pair(high, low) * float_of((n + 127) << 23, x)


@njit(cache=True)
def rcp_correct(x):  # type: ignore[no-untyped-def]
    """Return 1/x of a float32 scalar, rounded to nearest, flushed; infinity of the sign of a zero or subnormal x."""
    flushed = flush(x)
    if flushed == _ZERO:
        return float_of(bits_of(x) & np.uint32(0x80000000) | np.uint32(0x7F800000), x)
    return flush(_ONE / flushed)


@njit(cache=True)
def lg2_correct(x):  # type: ignore[no-untyped-def]
    """Return log2 x of a float32 scalar, rounded to nearest; -inf for zeros and subnormals of either sign."""
    if abs(x) < _MIN_NORMAL:
        return -_INF
    if not (x >= _MIN_NORMAL and x < _INF):
        return _INF if x == _INF else _NAN
    high, low = log2_pair(x)
    return round_pair(high, low)
