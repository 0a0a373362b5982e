"""Finite, +inf, -inf, NaN: a full truth table of what was expected against what came.

Contract: every element falls into exactly one of 16 cells; only the diagonal is right. Non-finite values are counted
here and enter no metric. Where an elementwise rule fails: `abs(nan) > tolerance` is false, so NaN passes it on either
side, and `-inf - -inf` is NaN, so the right answer for an empty row is rejected by one rule and waved through by
another. The class of what is expected is that of the truth rounded to the output's format: a float64 of 70000 is +inf
in fp16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

CLASSES = ("finite", "+inf", "-inf", "nan")


def classify(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return for each value the position of its class in `CLASSES`."""
    codes = np.zeros(values.shape, dtype=np.int64)
    odd = ~np.isfinite(values)
    if odd.any():
        strange = values[odd]
        codes[odd] = np.where(np.isnan(strange), 3, np.where(strange > 0, 1, 2))
    return codes


def tally(expected: NDArray[np.int64], actual: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the 4x4 table of counts, a row for each expected class, a column for each actual one."""
    return np.bincount((4 * expected + actual).ravel(), minlength=16).reshape(4, 4)


def named(table: NDArray[np.int64]) -> dict[str, int]:
    """Return the cells that occur as {"finite>nan": 3, ...}."""
    return {
        f"{CLASSES[expected]}>{CLASSES[actual]}": int(table[expected, actual])
        for expected in range(4)
        for actual in range(4)
        if table[expected, actual]
    }


def mismatches(classes: Mapping[str, int]) -> int:
    """Return how many elements are of another class than expected."""
    return sum(count for cell, count in classes.items() if len(set(cell.split(">"))) == 2)


def in_words(classes: Mapping[str, int]) -> str:
    """Return the wrong cells as a sentence: "3 elements expected -inf, got finite"."""
    wrong = []
    for cell, count in classes.items():
        expected, actual = cell.split(">")
        if expected != actual:
            wrong.append(f"{count} element{'' if count == 1 else 's'} expected {expected}, got {actual}")
    return "; ".join(wrong)
