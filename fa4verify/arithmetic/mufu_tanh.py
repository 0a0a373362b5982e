"""MUFU's tanh.approx.f32, bit for bit: what softcap uses.

Contract: `tanh` equals tanh.approx.f32 of an NVIDIA H200, subnormals included (NaN payloads aside). Odd; x itself below
2^-8, 1 from 8 on. In between a table row and the squarer of `mufu.squarer`, as for ex2, but the sum is cut to 24 bits
without a rounding constant, and fraction bits below the row's 17 are ignored.
Compared with a recording on all positive inputs from 2^-17 up to 2^8; elsewhere on 10 points, of them -0, -1/2, -inf.
Fails first on a device with other tables, in single ulps of one segment; tests/arithmetic/test_mufu_tanh.py names it.
Not monotone: 26,240 steps down on the positive side, nearly all from 1/2 up. Largest relative error 1.1126e-5.
Numbers: mufu_tables.json beside this file, with provenance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.fma import float32_operands
from fa4verify.arithmetic.mufu import squarer
from fa4verify.arithmetic.tables import read

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["tanh", "tanh_array"]

_TABLES = read()
_C0, _C1, _C2 = (np.array(column, np.int64) for column in zip(*_TABLES["tanh"], strict=True))
_SEGMENT_BITS = np.array(_TABLES["tanh_segment_bits"], np.int64)
_FIRST_ROW = np.cumsum(1 << _SEGMENT_BITS) - (1 << _SEGMENT_BITS)

_ONE, _NAN = np.float32(1.0), np.float32(np.nan)
_UNIT = 2.0**-39
_LOW_29 = np.uint64(2**29 - 1)
_FIRST_EXPONENT, _ONE_EXPONENT = 119, 130  # 2^-8 and 2^3, biased


@njit(cache=True)
def tanh_with(x, rounding):  # type: ignore[no-untyped-def]
    """Return the model with a constant added to the sum: 0 on the device (tests turn it by one)."""
    if x != x:
        return _NAN
    bits = np.int64(bits_of(x))
    sign, exponent, fraction = bits & 0x80000000, (bits >> 23) & 255, bits & 0x7FFFFF
    if exponent < _FIRST_EXPONENT:
        return x
    if exponent >= _ONE_EXPONENT:
        return float_of(sign | 0x3F800000, _ONE)
    segment_bits = _SEGMENT_BITS[exponent - _FIRST_EXPONENT]
    row = _FIRST_ROW[exponent - _FIRST_EXPONENT] + (fraction >> (23 - segment_bits))
    low = (fraction >> (6 - segment_bits)) & 0x1FFFF
    v = (_C0[row] << 15) + _C1[row] * low + 2 * _C2[row] * squarer(low) + rounding
    magnitude = np.float64(v)  # below 2^39: exact
    truncated = np.float32(float_of(bits_of(magnitude) & ~_LOW_29, magnitude) * _UNIT)  # 24 bits: exact
    return -truncated if sign else truncated


@njit(cache=True)
def tanh(x):  # type: ignore[no-untyped-def]
    """Return tanh.approx.f32 of a float32 scalar."""
    return tanh_with(x, 0)


@njit(cache=True)
def _tanh_each(x, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = tanh(x[i])


def tanh_array(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return tanh of a float32 array by MUFU."""
    (values,) = float32_operands(x)
    out = np.empty(values.size, np.float32)
    _tanh_each(values.reshape(-1), out)
    return out.reshape(values.shape)
