"""Scales: nothing leaves the range, the largest lands on the last code, and dequantised products are exact."""

from fractions import Fraction

import numpy as np
import pytest

from fa4verify.arithmetic.formats import E4M3, E5M2
from fa4verify.arithmetic.scaling import SCALE_BITS, largest_of_blocks, per_token, quantised, scales

RANDOM = np.random.Generator(np.random.Philox(11))


@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("power_of_two", [False, True])
def test_the_largest_stays_in_range_and_the_scale_is_tight(fmt, power_of_two):
    largest = np.exp2(RANDOM.uniform(-60, 60, 4000))
    found = scales(largest, fmt, power_of_two=power_of_two)
    ratio = largest / found
    assert np.all(ratio <= fmt.max_finite)
    assert np.all(ratio > fmt.max_finite * (0.5 if power_of_two else 1 - 2.0 ** (1 - SCALE_BITS)))
    assert np.all(found.astype(np.float32) == found)
    if power_of_two:
        assert np.all(np.frexp(found)[0] == 0.5)


def test_exact_powers_are_kept_and_nothing_has_the_scale_one():
    assert scales([448.0 * 8, 0.0], E4M3, power_of_two=True).tolist() == [8.0, 1.0]
    assert scales([448.0 * 8, 0.0], E4M3).tolist() == [8.0, 1.0]


def test_what_has_no_scale_is_refused():
    with pytest.raises(ValueError, match="inf or NaN has no scale"):
        scales([1.0, np.inf], E4M3)


def test_products_of_dequantised_numbers_are_exact():
    """The certified reference multiplies them in float64 and calls that exact."""
    x, y = (quantised(RANDOM.standard_normal(500), one, E4M3) * one for one in scales([4.1, 3.7], E4M3))
    assert all(Fraction(a) * Fraction(b) == Fraction(a * b) for a, b in zip(x, y, strict=True))


def test_blocks_follow_each_other_and_the_last_may_be_short():
    x = RANDOM.standard_normal((2, 300, 3, 8))
    found = largest_of_blocks(x, 128)
    for b, h, (i, rows) in ((1, 2, (0, slice(0, 128))), (0, 1, (1, slice(128, 256))), (1, 0, (2, slice(256, 300)))):
        assert found[b, h, i] == np.abs(x[b, rows, h]).max()
    spread = per_token(found, 128, 300)
    assert spread.shape == (2, 300, 3, 1)
    assert spread[1, 299, 0, 0] == found[1, 0, 2]
    assert spread[1, 127, 0, 0] == found[1, 0, 0]


def test_quantised_saturates_and_keeps_nan():
    got = quantised(np.array([1e9, -np.inf, np.nan, 465.0, 0.0]), 1.0, E4M3)
    assert got[[0, 1, 3, 4]].tolist() == [448.0, -448.0, 448.0, 0.0]
    assert np.isnan(got[2])
