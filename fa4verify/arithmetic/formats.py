"""The number formats of FA4, and the one routine that rounds to them.

Contract: round to nearest, ties to even, once, from float32 or float64. Overflow is the caller's choice: to the largest
finite value (`saturate`, PTX satfinite, infinities included) or to infinity (e4m3, which has none: to NaN); NaN stays.
Known failure mode of the usual way, rounding through float32: 1 + 2^-11 + 2^-40 goes to 1 in fp16 instead of 1 + 2^-10
(tests/arithmetic/test_formats.py holds every such midpoint). The scalars give the same bits when the processor flushes
subnormals to zero; `round_to` on float32 does not, because the conversion to float64 then loses them.
Numbers: IEEE 754-2019 (fp32, fp16), bfloat16 as fp32 cut to 8 bits, OCP 8-bit floating point 1.0 (e4m3 without
infinities, e5m2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with subnormals.

    `precision` counts the hidden bit; a normal number is m * 2^e with 1 <= m < 2 and emin <= e <= emax.
    """

    name: str
    width: int
    precision: int
    emin: int
    emax: int
    max_finite: float
    has_infinity: bool = True

    @property
    def min_normal(self) -> float:
        """Smallest positive normal number."""
        return 2.0**self.emin

    @property
    def min_subnormal(self) -> float:
        """Smallest positive number, the spacing of the subnormals."""
        return 2.0 ** (self.emin - self.precision + 1)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding in the normal range: half an ulp of 1."""
        return 2.0**-self.precision


BF16 = Format("bf16", 16, 8, -126, 127, (2.0 - 2.0**-7) * 2.0**127)
FP16 = Format("fp16", 16, 11, -14, 15, 65504.0)
E4M3 = Format("e4m3", 8, 4, -6, 8, 448.0, has_infinity=False)
E5M2 = Format("e5m2", 8, 3, -14, 15, 57344.0)
FP32 = Format("fp32", 32, 24, -126, 127, (2.0 - 2.0**-23) * 2.0**127)
FORMATS = {fmt.name: fmt for fmt in (BF16, FP16, E4M3, E5M2, FP32)}

_ONE = np.uint64(1)
_PRECISION = {np.float32: 24, np.float64: 53}
_EMIN = {np.float32: -126, np.float64: -1022}


@njit(cache=True)
def _round(x, cut, smallest_normal, magic, largest, overflow, saturate):  # type: ignore[no-untyped-def]
    """Round a float32 or float64 scalar once; the parameters come from `_parameters` and fold away when constant.

    A normal result: add half an ulp less one plus the lowest kept bit, cut; the carry may run into the exponent. A
    subnormal result: adding `magic`, whose ulp is the target's smallest number, makes the processor round there.
    """
    magnitude = abs(x)
    bits = np.uint64(bits_of(magnitude))
    bits = (bits + ((_ONE << (cut - _ONE)) - _ONE) + ((bits >> cut) & _ONE)) >> cut << cut
    y = float_of(bits, x)
    if magnitude < smallest_normal:
        y = (magnitude + magic) - magic
    if y > largest:
        y = largest if saturate else overflow
    if magnitude != magnitude:  # NaN: the carry above may have run through its bits
        y = magnitude
    return float_of(bits_of(y) | (bits_of(x) ^ bits_of(magnitude)), x)


def _parameters(fmt: Format, source: type[np.float32] | type[np.float64]) -> tuple[Any, Any, Any, Any, Any]:
    """Return the constants of `_round` for a target format, typed for the source."""
    cut = np.uint64(_PRECISION[source] - fmt.precision)
    if fmt.emin == _EMIN[source]:  # the source's subnormals are spaced like its smallest normals: one rule for both
        smallest_normal, magic = source(0.0), source(0.0)
    else:
        smallest_normal, magic = source(fmt.min_normal), source(fmt.min_subnormal * 2.0 ** (_PRECISION[source] - 1))
    overflow = source(np.inf if fmt.has_infinity else np.nan)
    return cut, smallest_normal, magic, source(fmt.max_finite), overflow


_BF16, _FP16, _E4M3, _E5M2 = (_parameters(fmt, np.float32) for fmt in (BF16, FP16, E4M3, E5M2))


@njit(cache=True)
def round_bf16(x):  # type: ignore[no-untyped-def]
    """Round a float32 scalar to bf16; overflow to infinity. Returns float32."""
    return _round(x, _BF16[0], _BF16[1], _BF16[2], _BF16[3], _BF16[4], False)


@njit(cache=True)
def round_fp16(x):  # type: ignore[no-untyped-def]
    """Round a float32 scalar to fp16; overflow to infinity. Returns float32."""
    return _round(x, _FP16[0], _FP16[1], _FP16[2], _FP16[3], _FP16[4], False)


@njit(cache=True)
def round_e4m3(x, saturate):  # type: ignore[no-untyped-def]
    """Round a float32 scalar to e4m3; overflow to +-448 with `saturate`, else NaN. Returns float32."""
    return _round(x, _E4M3[0], _E4M3[1], _E4M3[2], _E4M3[3], _E4M3[4], saturate)


@njit(cache=True)
def round_e5m2(x, saturate):  # type: ignore[no-untyped-def]
    """Round a float32 scalar to e5m2; overflow to +-57344 with `saturate`, else infinity. Returns float32."""
    return _round(x, _E5M2[0], _E5M2[1], _E5M2[2], _E5M2[3], _E5M2[4], saturate)


@njit(cache=True)
def code_e4m3(x):  # type: ignore[no-untyped-def]
    """Return the e4m3 code of a float32 scalar as uint32: `round_e4m3` saturating; 0x7f for NaN, whatever its sign."""
    magnitude = abs(round_e4m3(x, True))
    normal = np.uint32(bits_of(magnitude) >> np.uint32(20)) - np.uint32(120 << 3)
    code = normal if magnitude >= np.float32(2.0**-6) else np.uint32(magnitude * np.float32(2.0**9))
    code = np.uint32(code | ((bits_of(x) >> np.uint32(24)) & np.uint32(0x80)))
    return code if x == x else np.uint32(0x7F)


@njit(cache=True)
def code_e5m2(x):  # type: ignore[no-untyped-def]
    """Return the e5m2 code of a float32 scalar as uint32: `round_e5m2` saturating; 0x7f for NaN, whatever its sign."""
    magnitude = abs(round_e5m2(x, True))
    normal = np.uint32(bits_of(magnitude) >> np.uint32(21)) - np.uint32(112 << 2)
    code = normal if magnitude >= np.float32(2.0**-14) else np.uint32(magnitude * np.float32(2.0**16))
    code = np.uint32(code | ((bits_of(x) >> np.uint32(24)) & np.uint32(0x80)))
    return code if x == x else np.uint32(0x7F)


@njit(cache=True)
def _round_each(x, out, cut, smallest_normal, magic, largest, overflow, saturate):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        out[i] = _round(x[i], cut, smallest_normal, magic, largest, overflow, saturate)


def _float64(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return `x` as float64, exactly; TypeError for types whose conversion rounds or means something else."""
    array = np.asarray(x)
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise TypeError(f"expected float16, float32 or float64, got {array.dtype}")
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one, which is no news
        return array.astype(np.float64)


def round_to(x: npt.ArrayLike, fmt: Format, *, saturate: bool = False) -> npt.NDArray[np.float64]:
    """Round to a format, once, ties to even.

    Parameters
    ----------
    x
        float32 or float64, any shape.
    fmt
        Target format.
    saturate
        Overflow and infinities go to the largest finite value; otherwise to infinity, or NaN where `fmt` has none.

    Returns
    -------
    ndarray
        float64, the shape of `x`, every value representable in `fmt`.
    """
    source = np.ascontiguousarray(_float64(x))
    out = np.empty(source.size, np.float64)
    _round_each(source.reshape(-1), out, *_parameters(fmt, np.float64), saturate)
    return out.reshape(np.shape(x))


def ulp(x: npt.ArrayLike, fmt: Format) -> npt.NDArray[np.float64]:
    """Return the spacing of `fmt` in the binade of each x (at least the subnormals', at most the top binade's).

    NaN for infinities and NaN. A power of two has the spacing above it.
    """
    values = _float64(x)
    exponents = np.clip(np.frexp(values)[1] - 1, fmt.emin, fmt.emax)
    exponents = np.where(values == 0, fmt.emin, exponents)
    spacing = np.ldexp(1.0, exponents - (fmt.precision - 1))
    return np.where(np.isfinite(values), spacing, np.nan)


def encode(x: npt.ArrayLike, fmt: Format, *, saturate: bool = False) -> npt.NDArray[Any]:
    """Round to a format and return the codes (uint8, uint16, uint32); NaN becomes NVIDIA's, all ones but the sign."""
    y = round_to(x, fmt, saturate=saturate)
    magnitude = np.abs(np.where(np.isfinite(y), y, 0.0))
    exponent = np.clip(np.frexp(magnitude)[1] - 1, fmt.emin, fmt.emax)
    exponent = np.where(magnitude < fmt.min_normal, fmt.emin, exponent)
    # In units of the binade's ulp; the hidden bit, present in normal numbers alone, adds the one that makes the field.
    steps = np.ldexp(magnitude, fmt.precision - 1 - exponent).astype(np.int64)
    codes = ((exponent - fmt.emin) << (fmt.precision - 1)) + steps
    top = (1 << (fmt.width - 1)) - 1
    codes = np.where(np.isinf(y), top + 1 - (1 << (fmt.precision - 1)), codes)
    codes = np.where(np.isnan(y), top, codes + (np.signbit(y).astype(np.int64) << (fmt.width - 1)))
    return codes.astype(f"u{fmt.width // 8}")


def decode(codes: npt.ArrayLike, fmt: Format) -> npt.NDArray[np.float64]:
    """Return the values of codes, as float64."""
    code = np.asarray(codes).astype(np.int64)
    top = (1 << (fmt.width - 1)) - 1
    magnitude = code & top
    field = magnitude >> (fmt.precision - 1)
    fraction = magnitude & ((1 << (fmt.precision - 1)) - 1)
    steps = np.where(field > 0, fraction + (1 << (fmt.precision - 1)), fraction)
    value = np.ldexp(steps.astype(np.float64), np.maximum(field, 1) - 1 + fmt.emin - (fmt.precision - 1))
    if fmt.has_infinity:
        infinity = top + 1 - (1 << (fmt.precision - 1))
        value = np.where(magnitude == infinity, np.inf, np.where(magnitude > infinity, np.nan, value))
    else:
        value = np.where(magnitude == top, np.nan, value)
    return np.where(code > top, -value, value)
