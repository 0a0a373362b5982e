"""FA4's software exponential: 2^x by range reduction and a polynomial, in fp32, bit for bit.

Contract: the recipe of `flash_attn.cute.utils.ex2_emulation_2` (the packed form that the SM100 kernel calls) for any
coefficients: y = max(x, -127), r = y + (2^23 + 2^22) rounded toward minus infinity, f = y - (r - magic), Horner's rule
with one FMA a step, and the low bits of r shifted into the exponent by a wrapping 32-bit addition.
Known failure modes, which are FA4's and kept: NaN gives 0, +inf gives NaN, x >= 128 wraps (129 gives -0), and between
-127 and -126 the result is a subnormal with relative errors up to 100 %.
`ex2_emulation_ftz` is the scalar twin (`ex2_emulation`, add.rm.ftz), which differs for negative subnormal x alone.
`ex2_emulation_nearest` is no kernel of FA4's: the same recipe with the addition rounded to nearest, f in [-1/2, 1/2].
Numbers: coefficients from `flash_attn.cute.utils.POLY_EX2` (flash-attn-4 4.0.0b36; its comments name Sollya).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.fma import add_rm, add_rm_ftz, float32_operands, fma

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

POLY_EX2: dict[int, tuple[float, ...]] = {
    0: (1.0,),
    1: (1.0, float.fromhex("0x1.d8518ap-1")),
    2: (1.0, float.fromhex("0x1.54e1c8p-1"), float.fromhex("0x1.520794p-2")),
    3: (1.0, float.fromhex("0x1.63ea32p-1"), float.fromhex("0x1.d20d48p-3"), float.fromhex("0x1.3be13ap-4")),
    4: (
        1.0,
        float.fromhex("0x1.62d67ep-1"),
        float.fromhex("0x1.ee2a1cp-3"),
        float.fromhex("0x1.abd484p-5"),
        float.fromhex("0x1.b83c6ep-7"),
    ),
    5: (
        1.0,
        float.fromhex("0x1.62e4bep-1"),
        float.fromhex("0x1.ebdae6p-3"),
        float.fromhex("0x1.c921acp-5"),
        float.fromhex("0x1.27634cp-7"),
        float.fromhex("0x1.e9b62cp-10"),
    ),
}

_MAGIC = np.float32(2.0**23 + 2.0**22)
_LOWEST = np.float32(-127.0)
_EXPONENT_SHIFT = np.uint32(23)


@njit(cache=True)
def _polynomial_and_exponent(y, rounded, coefficients):  # type: ignore[no-untyped-def]
    fraction = y - (rounded - _MAGIC)
    degree = len(coefficients) - 1
    p = coefficients[degree]
    for k in range(degree - 1, -1, -1):
        p = fma(p, fraction, coefficients[k])
    return float_of((bits_of(rounded) << _EXPONENT_SHIFT) + bits_of(p), y)


@njit(cache=True)
def ex2_emulation(x, coefficients):  # type: ignore[no-untyped-def]
    """Return FA4's 2^x of a float32 scalar; `coefficients`: n + 1 float32 (array or tuple), constant first."""
    y = x if x > _LOWEST else _LOWEST  # PTX max drops a NaN
    return _polynomial_and_exponent(y, add_rm(y, _MAGIC), coefficients)


@njit(cache=True)
def ex2_emulation_ftz(x, coefficients):  # type: ignore[no-untyped-def]
    """Return what FA4's scalar form gives: as `ex2_emulation`, but 1 for negative subnormal x."""
    y = x if x > _LOWEST else _LOWEST
    return _polynomial_and_exponent(y, add_rm_ftz(y, _MAGIC), coefficients)


@njit(cache=True)
def ex2_emulation_nearest(x, coefficients):  # type: ignore[no-untyped-def]
    """Return the recipe's 2^x with add.rn in place of add.rm; ties to even, so f = 1/2 and -1/2 both occur."""
    y = x if x > _LOWEST else _LOWEST
    return _polynomial_and_exponent(y, y + _MAGIC, coefficients)


@njit(cache=True)
def _each(x, coefficients, out, ftz):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = ex2_emulation_ftz(x[i], coefficients) if ftz else ex2_emulation(x[i], coefficients)


@njit(cache=True)
def _each_nearest(x, coefficients, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = ex2_emulation_nearest(x[i], coefficients)


def float32_coefficients(coefficients: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return coefficients as float32; ValueError unless there is one and each is exactly representable."""
    exact = np.asarray(coefficients, dtype=np.float64)
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, hence unequal
        rounded = exact.astype(np.float32)
    if exact.ndim != 1 or exact.size == 0 or not np.array_equal(exact, rounded.astype(np.float64)):
        raise ValueError(f"expected one or more coefficients that float32 holds exactly, got {coefficients!r}")
    return rounded


def ex2_emulation_array(
    x: npt.ArrayLike, coefficients: Sequence[float] = POLY_EX2[3], *, ftz: bool = False, nearest: bool = False
) -> npt.NDArray[np.float32]:
    """Return FA4's 2^x of a float32 array; `ftz` chooses the scalar form's handling of subnormal x.

    `nearest` rounds the addition of the magic number to nearest; it has no scalar form.
    """
    if ftz and nearest:
        raise ValueError("reduction to nearest has no ftz form here")
    (values,) = float32_operands(x)
    out = np.empty(values.size, np.float32)
    if nearest:
        _each_nearest(values.reshape(-1), float32_coefficients(coefficients), out)
    else:
        _each(values.reshape(-1), float32_coefficients(coefficients), out, ftz)
    return out.reshape(values.shape)
