"""The special-function unit (MUFU): ex2, rcp and lg2 with ftz, bit for bit or correctly rounded.

Contract: `ex2`, `rcp`, `lg2` equal ex2.approx.ftz.f32, rcp.approx.ftz.f32 and lg2.approx.ftz.f32 of an NVIDIA H200 on
all 2^32 inputs (NaN payloads aside): a table row, a truncated square and one integer sum. `ex2_correct`, `rcp_correct`,
`lg2_correct` (from `correct`) are the same functions rounded to nearest, for hardware that nobody has admitted.
Fails first on a device with other tables, in single ulps: tests/golden/mufu_exhaustive.py finds that in seconds.
Numbers: mufu_tables.json beside this file, with provenance; structure by Oberman and Siu, ARITH 2005.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.correct import ex2_correct, lg2_correct, rcp_correct
from fa4verify.arithmetic.fma import float32_operands
from fa4verify.arithmetic.tables import read

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ex2", "ex2_array", "ex2_correct", "lg2", "lg2_array", "lg2_correct", "rcp", "rcp_array", "rcp_correct", "squarer",
]  # fmt: skip

_TABLES = read()
_EX2_0, _EX2_1, _EX2_2 = (np.array(column, np.int64) for column in zip(*_TABLES["ex2"], strict=True))
_RCP_0, _RCP_1, _RCP_2 = (np.array(column, np.int64) for column in zip(*_TABLES["rcp"], strict=True))
_LG2_0, _LG2_1, _LG2_2 = (np.array(column, np.int64) for column in zip(*_TABLES["lg2"], strict=True))
_EX2_ROUNDING, _RCP_ROUNDING, _LG2_ROUNDING = 0x77E2, 0x47E7, 0x3345

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_INF, _NAN = np.float32(np.inf), np.float32(np.nan)
_MIN_NORMAL = np.float32(2.0**-126)
_FIXED = np.float32(2.0**23)
_EX2_LIMIT = np.float32(128.0)
_LG2_UNIT = 2.0**-36
_LOW_29 = np.uint64(2**29 - 1)


@njit(cache=True)
def squarer(x):  # type: ignore[no-untyped-def]
    """Return S(x) of a 17-bit integer: the sum over the set bits i of x of x >> (18 - i), halved, about x^2 / 2^19.

    With x = 512 h + l every product of two bits of h survives the cut, none of two bits of l does, and the mixed ones
    come in pairs: seven terms instead of seventeen.
    """
    high, low = x >> 9, x & 511
    mixed = 0
    for a in range(1, 8):
        mixed += (low >> (9 - a)) * ((high >> a) & 1)
    return ((high * high) >> 1) + mixed


@njit(cache=True, forceinline=True)
def ex2_with(x, rounding):  # type: ignore[no-untyped-def]
    """Return the model of ex2 with a given rounding constant (tests turn it by one)."""
    magnitude = abs(x)
    magnitude = magnitude if magnitude < _EX2_LIMIT else _EX2_LIMIT  # NaN too: fixed up at the end
    t = np.int64(np.int32(magnitude * _FIXED))  # 23 fraction bits, truncated
    q = t
    if x < _ZERO:
        q = -t - 1 if t & 0x7FFFFF else -t  # the one's complement, except where there is no fraction
    f = q & 0x7FFFFF
    row, low = f >> 17, f & 0x1FFFF
    significand = ((_EX2_0[row] << 13) + _EX2_1[row] * low + _EX2_2[row] * squarer(low) + rounding) >> 15
    exponent = (q >> 23) + 127
    y = float_of((exponent << 23) | (significand & 0x7FFFFF), _ONE)
    y = y if exponent < 255 else _INF
    y = y if exponent > 0 else _ZERO
    return y if x == x else _NAN


@njit(cache=True)
def rcp_with(x, rounding):  # type: ignore[no-untyped-def]
    """Return the model of rcp with a given rounding constant."""
    bits = np.int64(bits_of(x))
    sign = bits & 0x80000000
    field, f = (bits >> 23) & 255, bits & 0x7FFFFF
    row, low = f >> 16, f & 0xFFFF
    significand = ((_RCP_0[row] << 13) + _RCP_1[row] * low + _RCP_2[row] * squarer(2 * low) + rounding) >> 15
    exponent = 253 - field + (significand >> 24)  # 2^24 is reached by powers of two alone
    result = (exponent << 23) | (0 if significand >> 24 else significand & 0x7FFFFF)
    result = result if exponent > 0 else 0
    result = 0x7F800000 if field == 0 else result
    y = float_of(sign | result, _ONE)
    return y if x == x else _NAN


@njit(cache=True)
def lg2_with(x, rounding):  # type: ignore[no-untyped-def]
    """Return the model of lg2 with a given rounding constant."""
    bits = np.int64(bits_of(x))
    field, f = (bits >> 23) & 255, bits & 0x7FFFFF
    row, low = f >> 17, f & 0x1FFFF
    v = ((_LG2_0[row] << 12) + _LG2_1[row] * low + 2 * _LG2_2[row] * squarer(low) + rounding) >> 2
    v = (0 if x == _ONE else v) + ((field - 127) << 36)
    magnitude = np.float64(-v - 1 if v < 0 else v)  # below 2^43: exact; a negative v by its one's complement
    truncated = float_of(bits_of(magnitude) & ~_LOW_29, magnitude) * _LG2_UNIT  # 24 bits: exact in float32
    y = np.float32(-truncated if v < 0 else truncated)
    y = y if x < _INF else _INF
    y = y if x >= _MIN_NORMAL else _NAN  # negative or NaN, or ...
    return y if not abs(x) < _MIN_NORMAL else -_INF  # ... zero and subnormals of either sign


@njit(cache=True, forceinline=True)
def ex2(x):  # type: ignore[no-untyped-def]
    """Return ex2.approx.ftz.f32 of a float32 scalar."""
    return ex2_with(x, _EX2_ROUNDING)


@njit(cache=True)
def rcp(x):  # type: ignore[no-untyped-def]
    """Return rcp.approx.ftz.f32 of a float32 scalar."""
    return rcp_with(x, _RCP_ROUNDING)


@njit(cache=True)
def lg2(x):  # type: ignore[no-untyped-def]
    """Return lg2.approx.ftz.f32 of a float32 scalar."""
    return lg2_with(x, _LG2_ROUNDING)


@njit(cache=True)
def _ex2_each(x, out, correct):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = ex2_correct(x[i]) if correct else ex2(x[i])


@njit(cache=True)
def _rcp_each(x, out, correct):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = rcp_correct(x[i]) if correct else rcp(x[i])


@njit(cache=True)
def _lg2_each(x, out, correct):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = lg2_correct(x[i]) if correct else lg2(x[i])


def _map(each: Any, x: npt.ArrayLike, correct: bool) -> npt.NDArray[np.float32]:
    (values,) = float32_operands(x)
    out = np.empty(values.size, np.float32)
    each(values.reshape(-1), out, correct)
    return out.reshape(values.shape)


def ex2_array(x: npt.ArrayLike, *, correct: bool = False) -> npt.NDArray[np.float32]:
    """Return 2^x of a float32 array by MUFU, or correctly rounded."""
    return _map(_ex2_each, x, correct)


def rcp_array(x: npt.ArrayLike, *, correct: bool = False) -> npt.NDArray[np.float32]:
    """Return 1/x of a float32 array by MUFU, or correctly rounded."""
    return _map(_rcp_each, x, correct)


def lg2_array(x: npt.ArrayLike, *, correct: bool = False) -> npt.NDArray[np.float32]:
    """Return log2 x of a float32 array by MUFU, or correctly rounded."""
    return _map(_lg2_each, x, correct)
