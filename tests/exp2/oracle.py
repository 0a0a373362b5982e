"""Second opinions that share no code with the laboratory: exact fractions, mpmath and flint."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
from flint import arb, ctx

F32 = np.float32
INFINITY = {"bf16": Fraction(2**128), "fp16": Fraction(2**16), "e4m3": Fraction(448)}


def number(code: int) -> float:
    """Return the float32 of these bits."""
    return float(np.uint32(code).view(F32))


def nearest(value: Fraction, precision: int, emin: int, largest: Fraction | None = None) -> Fraction:
    """Round to the nearest of a binary format, ties to even, by the definition; `largest` saturates."""
    if value == 0:
        return value
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    spacing = Fraction(2) ** (max(exponent, emin) - precision + 1)
    rounded = round(value / spacing) * spacing
    return rounded if largest is None else min(max(rounded, -largest), largest)


def to_format(value: Fraction, name: str) -> Fraction:
    """Round to bf16, fp16 or e4m3 with saturation; INFINITY stands for what is beyond the first two."""
    if name == "bf16":
        return min(nearest(value, 8, -126), INFINITY[name])
    if name == "fp16":
        return min(nearest(value, 11, -14), INFINITY[name])
    return nearest(value, 4, -6, Fraction(448))


def recipe(x: float, coefficients: tuple[float, ...], reduction: str) -> float:
    """FA4's recipe in exact arithmetic, every step rounded to fp32 by the definition; x in [-126, 127]."""
    exact = Fraction(x)
    whole = math.floor(exact) if reduction == "floor" else round(exact)  # Python's round: ties to even
    f = nearest(exact - whole, 24, -126)
    p = Fraction(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        p = nearest(p * f + Fraction(coefficient), 24, -126)
    return float(p * Fraction(2) ** whole)


@cache
def power(x: float) -> Fraction:
    """2^x by mpmath, to 200 bits."""
    with mpmath.workprec(200):
        value = mpmath.power(2, mpmath.mpf(x))
        mantissa, exponent = value.man_exp
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def ball(x: float) -> arb:
    """2^x as a ball."""
    with ctx.workprec(200):
        return (arb(x) * arb.const_log2()).exp()


def ulp_of(exact: Fraction) -> Fraction:
    """Spacing of float32 at a positive number."""
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > exact
    return Fraction(2) ** (max(exponent, -126) - 23)
