"""The certificate against ball subdivision (no roots, no derivative), mpmath, and the published sup norms."""

from fractions import Fraction

import flint
import numpy as np
import pytest
from mpmath import mp, workdps

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2.certify import certify
from fa4verify.exp2.remez import Shape, minimax

PUBLISHED = {1: 3.87515e-2, 2: 2.07552e-3, 3: 8.76296e-5, 4: 2.98996e-6, 5: 8.53465e-8}


def subdivided(coefficients, interval, parts):
    """Return a proven upper bound of |p 2^-f - 1| by plain evaluation on `parts` balls, in Taylor form of order one."""
    p = flint.arb_poly([flint.arb(float(c)) for c in coefficients])
    slope = p.derivative() - p * flint.arb(2).log()
    left, right = interval
    radius = (right - left) / parts / 2
    worst = flint.arb(0)
    for k in range(parts):
        middle = flint.arb(left + (2 * k + 1) * radius)
        ball = flint.arb(left + (2 * k + 1) * radius, radius)
        value = p(middle) * 2 ** (-middle) - 1
        change = slope(ball) * 2 ** (-ball) * flint.arb(0, radius)
        worst = worst.max(abs(value + change))
    return float(worst.upper())


@pytest.mark.parametrize("degree", range(1, 6))
def test_fa4s_sets_have_the_published_sup_norms(degree):
    found = certify(POLY_EX2[degree])
    assert found.lower <= found.upper <= found.lower * (1 + 1e-13)
    assert found.upper == pytest.approx(PUBLISHED[degree], rel=2e-6)


@pytest.mark.parametrize("degree", range(6))
def test_subdivision_and_mpmath_enclose_it(degree):
    found = certify(POLY_EX2[degree])
    bound = subdivided(POLY_EX2[degree], (0.0, 1.0), 4000)
    assert found.lower <= bound <= found.upper * 1.01 + 1e-15
    with workdps(40):
        at = mp.mpf(found.where)
        value = abs(mp.polyval([mp.mpf(c) for c in POLY_EX2[degree][::-1]], at) * mp.power(2, -at) - 1)
    assert float(value) == pytest.approx(found.upper, rel=1e-12)


@pytest.mark.parametrize(
    "shape", [Shape(7, "free"), Shape(7), Shape(4, "one", False, "nearest"), Shape(5, "one", True)]
)
def test_the_exchange_reaches_what_is_certified(shape):
    found = minimax(shape)
    exact = [Fraction(int(mp.ldexp(c, 160)), 2**160) for c in found.coefficients]
    proven = certify(exact, shape.interval)
    assert proven.lower * (1 - 1e-12) <= float(found.error) <= proven.upper * (1 + 1e-12)


def test_no_random_point_exceeds_it_and_an_ulp_is_seen():
    rng = np.random.default_rng(1)
    for _ in range(50):
        coefficients = [float(np.float32(c * (1 + 1e-3 * rng.normal()))) for c in POLY_EX2[4]]
        found = certify(coefficients)
        f = rng.random(2000)
        assert np.abs(np.polyval(coefficients[::-1], f) * np.exp2(-f) - 1).max() <= found.upper + 1e-15
    shipped = list(POLY_EX2[5])
    other = [*shipped]
    other[3] = float(np.nextafter(np.float32(other[3]), np.float32(1.0)))
    assert certify(shipped).upper != certify(other).upper


def test_what_flint_cannot_isolate_is_an_error_not_a_guess(monkeypatch):
    def fails(self):
        raise ValueError("roots could not be isolated")

    class Slope:
        """Stands in for a polynomial whose roots FLINT gives up on."""

        def degree(self):
            return 2

        complex_roots = fails

    class Polynomial:
        def __init__(self, _):
            pass

        def derivative(self):
            return self

        def __mul__(self, _):
            return self

        def __sub__(self, _):
            return Slope()

    monkeypatch.setattr(flint, "arb_poly", Polynomial)
    with pytest.raises(ArithmeticError, match="do not separate"):
        certify(POLY_EX2[3])
