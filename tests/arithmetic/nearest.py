"""The nearest float32 of 2^x and log2 x, by another road: NumPy in float64, and balls where it might be wrong."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import flint
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

# Float64 functions of NumPy are wrong by at most 4 ulp (its SIMD versions); 64 leaves room.
DOUBTFUL_ULP = 64


BITS = 200


def ball_exp2(x: float) -> flint.arb:
    """Return 2^x as a ball of about 200 bits."""
    with flint.ctx.workprec(BITS):
        return (flint.arb(x) * flint.arb(2).log()).exp()


def ball_log2(x: float) -> flint.arb:
    """Return log2 x as a ball of about 200 bits."""
    with flint.ctx.workprec(BITS):
        return flint.arb(x).log() / flint.arb(2).log()


def nearest_of_ball(ball: flint.arb) -> float:
    """Return the float32 nearest to a ball; ValueError where the ball does not lie between two middles."""
    guess = np.float32(float(ball.mid()))
    for candidate in (guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf))):
        sides = (Fraction(float(np.nextafter(candidate, np.float32(side)))) for side in (-np.inf, np.inf))
        low, high = ((Fraction(float(candidate)) + side) / 2 for side in sides)
        with flint.ctx.workprec(BITS):
            if flint.arb(float(low)) < ball and ball < flint.arb(float(high)):  # float64 holds a middle exactly
                return float(candidate)
    raise ValueError(f"{ball} is too wide, or on a middle")


def nearest(
    x: np.ndarray, function: Callable[[np.ndarray], np.ndarray], ball: Callable[[float], flint.arb]
) -> np.ndarray:
    """Round function(x) to float32; values near the middle of two float32 are decided by balls."""
    values = function(x.astype(np.float64))
    result = values.astype(np.float32)
    from_middle = np.abs((values.view(np.int64) & (2**29 - 1)) - 2**28)
    for index in np.flatnonzero(from_middle <= DOUBTFUL_ULP):
        result[index] = nearest_of_ball(ball(float(x[index])))
    return result
