"""A proven bound on a polynomial's error against 2^f in real arithmetic, by FLINT's balls.

Contract: `certify` returns an interval that contains the largest |p(f) 2^-f - 1| over the fractions, of the polynomial
with exactly the given coefficients and no rounding at all; what fp32 evaluation adds is not in it.
How: the error's derivative is 2^-f (p' - ln 2 p), so its extremes are the ends and real roots of a polynomial, which
FLINT isolates with proof. A root that may be real is taken as real: its value is attained or harmless.
Known failure mode: a multiple root cannot be isolated; then FLINT gives up and this raises, it never guesses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_BITS = 256


@dataclass(frozen=True)
class Certificate:
    """The sup norm lies in [lower, upper]; `where` is a float64 next to the fraction that attains it."""

    lower: float
    upper: float
    where: float


def _ball(value: float | Fraction) -> Any:
    from flint import arb, fmpq

    exact = Fraction(value)
    return arb(fmpq(exact.numerator, exact.denominator))


def certify(coefficients: Sequence[float | Fraction], interval: tuple[float, float] = (0.0, 1.0)) -> Certificate:
    """Return a certificate of the largest relative error of a polynomial, constant first, over a closed interval.

    Raises
    ------
    ArithmeticError
        The extremes could not be isolated at 256 bits (two of them coincide).
    """
    import flint

    before = flint.ctx.prec
    flint.ctx.prec = _BITS
    try:
        p = flint.arb_poly([_ball(c) for c in coefficients])
        slope = p.derivative() - p * flint.arb(2).log()
        left, right = (_ball(end) for end in interval)
        places = [left, right]
        if slope.degree() > 0:
            try:
                roots = slope.complex_roots()
            except ValueError as error:
                raise ArithmeticError(f"the extremes of {list(map(float, coefficients))} do not separate") from error
            real = [r.real for r in roots if r.imag.contains(0) and not (r.real < left or r.real > right)]
            places += [_narrowed(slope, root) for root in real]
        errors = [(abs(p(f) * 2 ** (-f) - 1), f) for f in places]
        largest = max(errors, key=lambda pair: float(pair[0].mid()))
        upper = max(float(error.upper()) for error, _ in errors)
        # float() of a ball's end rounds to nearest; one step outward keeps the interval true.
        return Certificate(_below(float(largest[0].lower())), _above(upper), float(largest[1].mid()))
    finally:
        flint.ctx.prec = before


def _narrowed(polynomial: Any, root: Any) -> Any:
    """Return a narrower ball around an isolated root: interval Newton, which loses no root of its argument."""
    from flint import arb

    derivative = polynomial.derivative()
    for _ in range(8):
        bend = derivative(root)
        if bend.contains(0):
            break
        middle = arb(root.mid())
        root = root.intersection(middle - polynomial(middle) / bend)
    return root


def _below(value: float) -> float:
    return math.nextafter(value, -math.inf)


def _above(value: float) -> float:
    return math.nextafter(value, math.inf)
