"""The line to beat: the error of MUFU.EX2, measured as a coefficient set's is.

Contract: `measure` evaluates the device's ex2 (`arithmetic.mufu`: an H200 in every bit) and gives the same figures as
`merit` does for a set: the largest relative error over every float32 x in [-126, 0], the others over x = -k/2^24,
k = 0 ... 2^24, which holds each fraction once. 2^x itself is the float64 of `correct.exp2_pair`: off by 2^-53.
Takes a minute on two cores, so `MEASURED` keeps what it gave; tests/exp2/test_hardware.py measures an octave again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of
from fa4verify.arithmetic.correct import exp2_pair
from fa4verify.arithmetic.mufu import ex2
from fa4verify.exp2.evaluate import float_at
from fa4verify.exp2.merit import Merit
from fa4verify.exp2.statistics import everything, fractions, processors
from fa4verify.exp2.targets import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fa4verify.exp2.statistics import Piece

NAME = "MUFU"
FRACTIONS = 2**24 + 1  # with f = 0, where MUFU is exact
_PIECE = 2**24
_CUTS = np.array([53 - fmt.precision for fmt in FORMATS.values()], np.uint64)
_ONE = np.uint64(1)
MEASURED = Merit(
    max=1.4396157077545269e-07,
    rms=4.655966317223532e-08,
    bias=-2.8811889649393917e-08,
    bf16=9.6559518780737e-06,
    fp16=7.25388483679981e-05,
    e4m3=7.152556946721259e-07,
)


@njit(cache=True)
def _rounded(x, cut):  # type: ignore[no-untyped-def]
    """Return the bits of a positive float64 rounded to 53 - cut significant bits, shifted down by cut."""
    bits = bits_of(x)
    return (bits + ((_ONE << (cut - _ONE)) - _ONE) + ((bits >> cut) & _ONE)) >> cut


@njit(cache=True, nogil=True)
def _walk(first, count, stride, cuts, shares, differing):  # type: ignore[no-untyped-def]
    """Return the largest |relative error|, the sum of the errors and that of their squares; count `differing`."""
    worst, total, squares = 0.0, 0.0, 0.0
    for i in range(count):
        x = float_at(first + i * stride)
        n, true, _ = exp2_pair(x)
        y = np.float64(ex2(x)) * 2.0**-n  # exact: x >= -126
        error = y / true - 1.0
        worst = max(worst, abs(error))
        total += error
        squares += error * error
        if shares:
            for j in range(cuts.size):
                differing[j] += _rounded(y, cuts[j]) != _rounded(true, cuts[j])
    return worst, total, squares


def largest(pieces: list[Piece], progress: Callable[[int], None] = lambda _: None) -> float:
    """Return the largest relative error over pieces of bit patterns with -126 <= x <= 0."""
    parts = [
        (piece.first + start * piece.stride, min(_PIECE, piece.count - start), piece.stride)
        for piece in pieces
        for start in range(0, piece.count, _PIECE)
    ]

    def take(part: tuple[int, int, int]) -> float:
        worst = _walk(*part, _CUTS, False, np.zeros(_CUTS.size, np.int64))[0]
        progress(part[1])
        return float(worst)

    with ThreadPoolExecutor(processors()) as pool:
        return max(pool.map(take, parts))


def over_fractions() -> Merit:
    """Return the figures over x = -k/2^24 alone, the largest error too."""
    differing = np.zeros(_CUTS.size, np.int64)
    sums = np.array([_walk(p.first, p.count, p.stride, _CUTS, True, differing) for p in fractions()])
    rms = float(np.sqrt(sums[:, 2].sum() / FRACTIONS))
    return Merit(float(sums[:, 0].max()), rms, float(sums[:, 1].sum()) / FRACTIONS, *(differing / FRACTIONS).tolist())


def measure(progress: Callable[[int], None] = lambda _: None) -> Merit:
    """Measure MUFU.EX2: every float32 in [-126, 0] for the largest error, every fraction for the rest."""
    once = over_fractions()
    return Merit(largest(everything(-126, 0), progress), once.rms, once.bias, once.bf16, once.fp16, once.e4m3)
