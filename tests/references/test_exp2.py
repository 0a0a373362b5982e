"""2^x and the declared polynomial: against integers, against the kernels' own recipe, against the published figures."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_array
from fa4verify.references import exp2
from fa4verify.vocabulary import Case, Distribution, Inputs

NAN, INF = np.float32(np.nan), np.float32(np.inf)
SPECIALS = np.array(
    [-INF, -3e38, -127, -126.5, -126, -(2.0**-26), -1e-45, -0.0, 0, 1e-45, 1, 127, 128, 129, 130, 256, INF, NAN],
    np.float32,
)


def solve(x, **options):
    case = Case(id="x", operation="exp2", kernel="none", distribution=Distribution("none"), options=options)
    return exp2.solve(case, Inputs({"x": torch.from_numpy(np.asarray(x, np.float32))}))


def round_to_float32(exact):
    """Round a Fraction to nearest, ties to even, with integers."""
    if exact == 0:
        return 0.0
    exponent = max(-149, _log2(abs(exact)) - 23)
    return float(round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent)


def _log2(positive):
    """Return floor(log2)."""
    power = positive.numerator.bit_length() - positive.denominator.bit_length()
    return power if Fraction(2) ** power <= positive else power - 1


def sums_beside_midpoints(count):
    """Return a, b, c whose a b + c lies 2^-70 inside a midpoint of float32, where float64 sees the midpoint itself."""
    generator = np.random.default_rng(0)
    sign = generator.choice(np.float32([-1, 1]), count)
    a = (sign * (1 + 2.0**-23)).astype(np.float32)
    b = np.full(count, (1 - 2.0**-23) * 2.0**-24, np.float32)  # a b = +-2^-24 (1 - 2^-46)
    c = 1 + generator.integers(1, 2**23, count) * 2.0**-23
    return a, b, c


def test_fma_rounds_once_beside_midpoints():
    a, b, c = sums_beside_midpoints(500)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    found = np.array([exp2._fma(a[i : i + 1], b[i : i + 1], c[i])[0] for i in range(len(a))])
    np.testing.assert_array_equal(found, [round_to_float32(x) for x in exact])
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert 0.4 < (twice != found).mean() < 0.6  # the twin: round to float64, then to float32


def test_fma_rounds_once_on_random_triples():
    generator = np.random.default_rng(1)
    a, b = (np.ldexp(generator.standard_normal(3000), generator.integers(-70, 20, 3000)) for _ in range(2))
    a, b = a.astype(np.float32), b.astype(np.float32)
    for c in np.float32([1.0, -0.3, 2.0**-140, 0.0]).astype(np.float64):
        exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(c) for x, y in zip(a, b, strict=True)]
        np.testing.assert_array_equal(exp2._fma(a, b, c), [round_to_float32(x) for x in exact])


@pytest.mark.parametrize("x", [-126.3, -3.7, -1.0, -(2.0**-30), 0.3, 5e6, 8388607.5, -8388607.5, 3e38, -3e38])
def test_addition_rounds_down(x):
    x = np.float32(x)
    exact = Fraction(float(x)) + Fraction(exp2.MAGIC)
    found = exp2._add_toward_minus_infinity(np.array([x]), exp2.MAGIC)[0]
    assert Fraction(float(found)) <= exact
    assert np.nextafter(found, INF) == INF or Fraction(float(np.nextafter(found, INF))) > exact


@pytest.mark.parametrize("degree", range(6))
def test_equals_the_kernels_recipe_in_every_bit(degree):
    generator = np.random.default_rng(degree)
    points = [
        SPECIALS,
        (-127 * generator.random(2**16)).astype(np.float32),
        generator.integers(0, 2**32, 2**17, dtype=np.uint32).view(np.float32),  # any bit pattern
        -np.ldexp(1 + generator.random(2**14), generator.integers(-40, 8, 2**14)).astype(np.float32),
    ]
    x = np.concatenate([each.astype(np.float32) for each in points])
    ours = exp2.polynomial_exp2(x, exp2.COEFFICIENTS[degree])
    theirs = ex2_emulation_array(x, POLY_EX2[degree])
    same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all(), [float(value).hex() for value in x[~same][:5]]


def test_both_readings_of_the_coefficients_agree():
    assert {degree: tuple(POLY_EX2[degree]) for degree in exp2.COEFFICIENTS} == exp2.COEFFICIENTS


def test_special_inputs_of_degree_3():
    """As tabled from FA4's recipe: NaN and everything below -127 give 0, beyond 128 the exponent wraps."""
    found = dict(
        zip(SPECIALS.tolist()[:-1], exp2.polynomial_exp2(SPECIALS, exp2.COEFFICIENTS[3]).tolist(), strict=False)
    )
    assert found[float("-inf")] == found[-127.0] == found[float(np.float32(-3e38))] == 0.0
    assert exp2.polynomial_exp2(SPECIALS[-1:], exp2.COEFFICIENTS[3])[0] == 0.0
    assert found[-126.0] == 2.0**-126
    assert found[-126.5] == pytest.approx(2.0**-126.5 * (1 - 0.414), rel=1e-3)
    assert found[-(2.0**-26)] == float.fromhex("0x1.fff4d6p-1") == found[float(np.float32(-1e-45))]
    assert found[0.0] == found[float(np.float32(1e-45))] == 1.0
    assert (found[1.0], found[127.0], found[128.0]) == (2.0, 2.0**127, np.inf)
    assert (found[129.0], found[130.0], found[256.0]) == (0.0, -(2.0**-126), -1.0)
    assert np.isnan(found[np.inf])


FIGURES = {  # degree: largest relative error, RMSE, signed mean, jump at integers in ulp
    1: (3.8751e-2, 2.6468e-2, 1.59e-2, 650142),
    2: (2.0756e-3, 1.4450e-3, None, 34460),
    3: (8.7688e-5, 6.0286e-5, 8.24e-6, 1429),
    4: (3.0487e-6, 2.0392e-6, -3.2e-8, 48),
    5: (1.4432e-7, 6.354e-8, 3.4e-9, 2),
}


@pytest.mark.parametrize("degree", FIGURES)
def test_reproduces_the_published_error_of_each_degree(degree):
    """Fractions k / 2^20 here, k / 2^24 there: the largest errors differ by what the coarser grid misses."""
    largest, rmse, mean, jump = FIGURES[degree]
    f = (np.arange(2**20) / 2**20).astype(np.float32)
    found = exp2.polynomial_exp2(f, exp2.COEFFICIENTS[degree])
    error = found / np.exp2(f.astype(np.float64)) - 1
    assert np.abs(error).max() == pytest.approx(largest, rel=2e-4 if degree < 5 else 1e-2)
    assert np.sqrt((error**2).mean()) == pytest.approx(rmse, rel=1e-3)
    if mean is not None:
        assert error.mean() == pytest.approx(mean, rel=2e-2)  # two digits are given
    sides = exp2.polynomial_exp2(np.float32([-(2.0**-26), 0.0]), exp2.COEFFICIENTS[degree]).view(np.int32)
    assert sides[1] - sides[0] == jump


def test_truth_of_y_is_certified():
    x = -np.logspace(-9, 2.1, 5000).astype(np.float32)
    truth = solve(x)
    assert 0 < truth.radius["y"] < 2.0**-52
    assert truth.tensors["y"].dtype == np.float64
    assert "relative" in truth.provenance["radius"]
    for i in range(0, x.size, 97):
        with mpmath.workdps(40):
            exact = mpmath.power(2, mpmath.mpf(float(x[i])))
            assert abs(truth.tensors["y"][i] / exact - 1) < 4 * 2.0**-52


def test_an_error_in_y_shows_in_the_radius():
    x = np.linspace(-3, 0, 10, dtype=np.float32)
    y = np.exp2(x.astype(np.float64))
    assert exp2._certify(x, y * (1 + 1e-9))[1] == pytest.approx(1e-9, rel=1e-5)
    assert exp2._certify(x, y)[1] < 4 * 2.0**-52


def test_specials_of_y():
    truth = solve([-np.inf, np.inf, np.nan, -2000, 2000, 0])
    np.testing.assert_array_equal(truth.tensors["y"], [0, np.inf, np.nan, 0, np.inf, 1])
    assert truth.radius["y"] < 2.0**-60
    assert solve([np.nan, 200, 1000]).radius == {}  # float32 ends at 2^128
    assert solve([]).tensors["y"].shape == (0,)


def test_declares_a_polynomial_only_where_the_case_does():
    x = np.linspace(-5, 0, 100, dtype=np.float32)
    assert not solve(x).moments
    declared = solve(x, degree=2).moments["declared"]
    assert declared.dtype == np.float32
    np.testing.assert_array_equal(declared, exp2.polynomial_exp2(x, exp2.COEFFICIENTS[2]))
    own = solve(x, degree=2, coefficients=[1.0, 0.5, 0.25]).moments["declared"]
    np.testing.assert_array_equal(own, exp2.polynomial_exp2(x, (1.0, 0.5, 0.25)))
    with pytest.raises(ValueError, match=r"options\.degree: expected one of \[0, 1, 2, 3, 4, 5\], got 9"):
        solve(x, degree=9)
