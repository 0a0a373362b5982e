"""How close 2^x and log2 x come to a rounding boundary of fp32, over every float32.

    python tests/golden/rounding_margins.py

`fa4verify.arithmetic.correct` computes high + low with relative error below 2^-57, and 2^x for |x| < 2^-7, where
high = 1, below 2^-50 |x|. If no value lies that close to the middle of two neighbouring float32, the nearest float32 of
the pair is the nearest float32 of the value. This script walks all of them (about a minute on one core) and prints the
closest, in units of 2^-57 or 2^-50 |x|; exit code 1 if one is closer than 1.
2^x: |x| from 2^-26 (below, 2^x is within half an ulp of 1) to 128. log2 x: every positive normal x but powers of two,
whose logarithm is exact. Found in November 2026: see docs/arithmetic.md.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numba import njit

from fa4verify.arithmetic.bits import bits_of, float_of
from fa4verify.arithmetic.correct import exp2_pair, log2_pair

LIMIT = 2.0**-57
ONE = np.float32(1.0)


@njit(cache=True)
def margin(high: Any, low: Any) -> Any:
    """Return the relative distance of high + low from the middle of the two float32 around it."""
    bits = np.int64(bits_of(high))
    step = float_of((bits & 0x7FF0000000000000) - (52 << 52), high)
    return abs((np.float64((bits & 0x1FFFFFFF) - 0x10000000) * step + (low if high > 0 else -low)) / high)


@njit(cache=True)
def closest_exp2(first: Any, last: Any) -> Any:
    """Return the smallest margin of 2^x over a range of float32 codes, and its code."""
    best, where = np.inf, first
    for code in range(first, last):
        x = float_of(code, ONE)
        _, high, low = exp2_pair(x)
        distance = margin(high, low) / (LIMIT * min(1.0, 128.0 * abs(np.float64(x))))
        if distance < best:
            best, where = distance, code
    return best, where


@njit(cache=True)
def closest_log2(first: Any, last: Any) -> Any:
    """Return the smallest margin of log2 x over a range of float32 codes, powers of two left out, and its code."""
    best, where = np.inf, first
    for code in range(first, last):
        if code & 0x7FFFFF:
            high, low = log2_pair(float_of(code, ONE))
            distance = margin(high, low) / LIMIT
            if distance < best:
                best, where = distance, code
    return best, where


def ranges() -> dict[str, tuple[Any, list[int]]]:
    """Sign and exponent of every block of 2^23 codes to walk."""
    positive, negative = range(127 - 26, 127 + 7), range(256 + 127 - 26, 256 + 127 + 6)
    return {
        "2^x, x > 0": (closest_exp2, list(positive)),
        "2^x, x < 0": (closest_exp2, list(negative)),
        "log2 x": (closest_log2, list(range(1, 255))),
    }


def main() -> int:
    """Walk, print, judge."""
    worst = np.inf
    for name, (closest, blocks) in ranges().items():
        start = time.perf_counter()
        best, code = min(closest(block << 23, (block + 1) << 23) for block in blocks)
        if name == "2^x, x < 0":  # [-126, -64], not the whole block
            best, code = min((best, code), closest(0xC2800000, 0xC2FC0001))
        x = float(np.uint32(code).view(np.float32))
        seconds = time.perf_counter() - start
        print(f"{name}: closest {best:.3g} at x = {x.hex()} ({x:.9g}); {seconds:.0f} s", flush=True)
        worst = min(worst, best)
    return 0 if worst > 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
