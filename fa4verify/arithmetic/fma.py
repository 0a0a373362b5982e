"""Single fp32 operations as the device does them: FMA, and addition toward minus infinity, with and without ftz.

Contract: one rounding each. `fma` is LLVM's fma intrinsic (an instruction where the processor has one, else the C
library's fmaf), never a multiplication and an addition in float64: that rounds twice and is wrong on half of the
adversarial set of tests/arithmetic/test_fma.py. Numba contracts nothing by itself (fastmath is off), so `a * b + c`
stays two roundings; the tests hold it to that.
The `_ftz` forms flush subnormal operands and results to zero of the same sign. A result is tiny when its size, rounded
to 24 bits with the exponent unbounded, is below 2^-126: an H200 flushes (1 - 2^-24) * 2^-126, which plain rounding
would carry up to 2^-126. Sums, all that FA4 flushes, are exact there.
`add_rm` is PTX add.rm.f32: an exact zero sum of unlike signs is -0, overflow upward stops at the largest number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numba.extending import intrinsic

from fa4verify.arithmetic.bits import bits_of, float_of

if TYPE_CHECKING:
    import numpy.typing as npt

_MIN_NORMAL = np.float32(2.0**-126)
_TINY = 2.0**-126 * (1.0 - 2.0**-25)  # from here on, rounding to 24 bits reaches 2^-126
_ZERO = np.float32(0.0)
_SIGN = np.uint32(0x80000000)
_STEP = np.uint32(1)


def _fused(_typing_context: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, b, c), generate


_fma: Any = intrinsic(_fused)


@njit(cache=True)
def fma(a, b, c):  # type: ignore[no-untyped-def]
    """Return a * b + c of float32 scalars, rounded once (PTX fma.rn.f32)."""
    return _fma(np.float32(a), np.float32(b), np.float32(c))


@njit(cache=True)
def fma64(a, b, c):  # type: ignore[no-untyped-def]
    """Return a * b + c of float64 scalars, rounded once."""
    return _fma(np.float64(a), np.float64(b), np.float64(c))


@njit(cache=True)
def two_sum(a, b):  # type: ignore[no-untyped-def]
    """Return the float64 sum of two scalars and its exact error (Knuth)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


@njit(cache=True)
def add_rm(a, b):  # type: ignore[no-untyped-def]
    """Return a + b of float32 scalars, rounded toward minus infinity (PTX add.rm.f32).

    The float64 sum and its error say on which side of the nearest float32 the exact sum lies.
    """
    total, error = two_sum(np.float64(a), np.float64(b))
    nearest = np.float32(total)
    back = np.float64(nearest)
    bits = bits_of(nearest)
    below = float_of(bits + _STEP, nearest) if nearest < _ZERO else float_of(bits - _STEP, nearest)
    result = below if back > total or (back == total and error < 0.0) else nearest
    if total == 0.0:
        result = float_of((bits_of(a) | bits_of(b)) & _SIGN, nearest)
    return result


@njit(cache=True)
def flush(x):  # type: ignore[no-untyped-def]
    """Return a float32 scalar with subnormals replaced by zero of the same sign."""
    return float_of(bits_of(x) & _SIGN, x) if abs(x) < _MIN_NORMAL else x


@njit(cache=True)
def _flush_result(nearest, total, error):  # type: ignore[no-untyped-def]
    """Flush a rounded result whose exact value is total + error, both float64."""
    size = abs(total)
    tiny = size < _TINY or (size == _TINY and (error < 0.0 if total > 0.0 else error > 0.0))
    return float_of(bits_of(nearest) & _SIGN, nearest) if tiny else nearest


@njit(cache=True)
def fma_ftz(a, b, c):  # type: ignore[no-untyped-def]
    """Return PTX fma.rn.ftz.f32 of float32 scalars."""
    x, y, z = flush(a), flush(b), flush(c)
    total, error = two_sum(np.float64(x) * np.float64(y), np.float64(z))  # the product is exact: 48 bits
    return _flush_result(fma(x, y, z), total, error)


@njit(cache=True)
def mul_ftz(a, b):  # type: ignore[no-untyped-def]
    """Return PTX mul.rn.ftz.f32 of float32 scalars."""
    x, y = flush(a), flush(b)
    return _flush_result(x * y, np.float64(x) * np.float64(y), 0.0)


@njit(cache=True)
def add_ftz(a, b):  # type: ignore[no-untyped-def]
    """Return PTX add.rn.ftz.f32 of float32 scalars."""
    return flush(flush(a) + flush(b))


@njit(cache=True)
def add_rm_ftz(a, b):  # type: ignore[no-untyped-def]
    """Return PTX add.rm.ftz.f32 of float32 scalars."""
    return flush(add_rm(flush(a), flush(b)))


@njit(cache=True)
def _fma_each(a, b, c, out, ftz):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = fma_ftz(a[i], b[i], c[i]) if ftz else fma(a[i], b[i], c[i])


@njit(cache=True)
def _add_rm_each(a, b, out, ftz):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = add_rm_ftz(a[i], b[i]) if ftz else add_rm(a[i], b[i])


def float32_operands(*operands: npt.ArrayLike) -> tuple[npt.NDArray[np.float32], ...]:
    """Return the operands broadcast against each other and contiguous; TypeError unless each is float32."""
    arrays = [np.asarray(operand) for operand in operands]
    for array in arrays:
        if array.dtype != np.float32:
            raise TypeError(f"expected float32, got {array.dtype}: round to float32 first, so that it is seen")
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return tuple(np.ascontiguousarray(np.broadcast_to(array, shape)).reshape(shape) for array in arrays)


def fma_array(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike, *, ftz: bool = False) -> npt.NDArray[np.float32]:
    """Return a * b + c of float32 arrays, one rounding an element; operands broadcast."""
    first, second, third = float32_operands(a, b, c)
    out = np.empty(first.size, np.float32)
    _fma_each(first.reshape(-1), second.reshape(-1), third.reshape(-1), out, ftz)
    return out.reshape(first.shape)


def add_rm_array(a: npt.ArrayLike, b: npt.ArrayLike, *, ftz: bool = False) -> npt.NDArray[np.float32]:
    """Return a + b of float32 arrays, rounded toward minus infinity; operands broadcast."""
    first, second = float32_operands(a, b)
    out = np.empty(first.size, np.float32)
    _add_rm_each(first.reshape(-1), second.reshape(-1), out, ftz)
    return out.reshape(first.shape)
