"""Where the correctly rounded 2^x of a 16- or 8-bit format changes, as float32 x.

Contract: 2^x grows, so its rounding to a format is a staircase; `staircase` gives the bits of the x at which each tread
begins and the float32 results that round to it. Counting results outside their tread is counting mismatches against
correct rounding: exact, without any reference of finite precision.
How it is ensured: a tread begins at log2 of the midpoint of two neighbours. Only a power of two has a log2 that float32
holds; for the others float64 decides on which side of it each float32 lies, unless it is nearer than 16 of its ulps,
and then balls do. Ties (subnormal midpoints that are powers of two) go to the even neighbour.
e4m3 saturates (cvt.rn.satfinite): results beyond 448 count as 448, NaN never does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from flint import arb, ctx

from fa4verify.arithmetic.formats import BF16, E4M3, FP16, Format, decode

if TYPE_CHECKING:
    import numpy.typing as npt

FORMATS = (BF16, FP16, E4M3)
_UNDECIDED = 16 * 2.0**-53
_INFINITY = 0x7F800000
_NEVER = np.int64(2**40)


@dataclass(frozen=True)
class Staircase:
    """Treads of one format in the order of growing bits of x; the last `at` is never reached.

    `at[k]` are the bits of x from which tread k + 1 counts; the results of tread k have the bits low[k] ...
    low[k] + width[k].
    """

    at: npt.NDArray[np.int64]
    low: npt.NDArray[np.uint32]
    width: npt.NDArray[np.uint32]


def _bits(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return values.astype(np.float32).view(np.uint32).astype(np.int64)


def _at_least(logs: npt.NDArray[np.float64], midpoints: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the smallest float32 that is at least log2 of each midpoint (equal for powers of two)."""
    x = logs.astype(np.float32)
    gap = x.astype(np.float64) - logs
    below = gap < 0
    exact = np.frexp(midpoints)[0] == 0.5
    for i in np.flatnonzero((np.abs(gap) <= _UNDECIDED * np.abs(logs)) & ~exact):
        with ctx.workprec(200):
            true = arb(float(midpoints[i])).log() / arb.const_log2()
            below[i] = bool(arb(float(x[i])) < true)
    return np.where(below, np.nextafter(x, np.float32(np.inf)), x)


@cache
def staircase(fmt: Format, negative: bool) -> Staircase:
    """Return the treads of `fmt` for x of one sign, zero included in the positive ones."""
    top = _codes_up_to_infinity(fmt)
    values = decode(np.arange(top), fmt)
    if fmt.has_infinity:
        values[-1] = 2.0 * 2.0**fmt.emax
    midpoints = (values[:-1] + values[1:]) / 2
    even = np.arange(top) % 2 == 0
    low = np.concatenate([[0], _bits(midpoints) + ~even[1:]])
    high = np.concatenate([_bits(midpoints) - ~even[:-1], [_INFINITY]])
    logs = np.log2(midpoints)
    x = _at_least(logs, midpoints)  # the smallest x whose 2^x reaches the midpoint
    tie_stays = (x.astype(np.float64) == logs) & (np.frexp(midpoints)[0] == 0.5) & even[:-1]
    x = np.where(tie_stays, np.nextafter(x, np.float32(np.inf)), x)  # the smallest x of the upper neighbour
    one = int(np.flatnonzero(values == 1.0)[0])
    if negative:  # from 1 downward: the largest x of the lower neighbour
        at = np.nextafter(x[:one], np.float32(-np.inf)).view(np.uint32).astype(np.int64)[::-1]
        chosen = slice(one, None, -1)
    else:
        at = x[one:].view(np.uint32).astype(np.int64)
        chosen = slice(one, None)
    low, width = low[chosen], (high - low)[chosen]
    return Staircase(np.append(at, _NEVER), low.astype(np.uint32), width.astype(np.uint32))


def _codes_up_to_infinity(fmt: Format) -> int:
    """Return how many codes are non-negative and, infinity included, numbers."""
    if fmt.has_infinity:
        return (1 << (fmt.width - 1)) - (1 << (fmt.precision - 1)) + 1
    return (1 << (fmt.width - 1)) - 1
