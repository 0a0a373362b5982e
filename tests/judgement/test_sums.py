"""Running sums against the same figures computed at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4verify.judgement.sums import Largest, Quantiles, UnitMean

SHARES = (0.01, 0.5, 0.99, 0.999)
SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6)


def test_quantiles_of_small_integers_are_exact():
    quantiles = Quantiles()
    quantiles.add(np.array([0.0, 1.0, 1.0, 2.0]))
    quantiles.add(np.array([3.0, 0.5, 0.0, 1000.0]))
    assert quantiles.at(0.25, 0.5, 0.625, 0.875, 1.0) == [0.0, 1.0, 1.0, 3.0, 1000.0]


@pytest.mark.parametrize("size", [1, 50_001, 700_001])
def test_quantiles_are_right_to_12_bits(size):
    """The largest size is past the change from codes to a histogram."""
    values = np.abs(np.random.default_rng(0).standard_cauchy(size))
    quantiles = Quantiles()
    for part in np.array_split(values, 7):
        quantiles.add(part)
    for share, found in zip(SHARES, quantiles.at(*SHARES), strict=True):
        exact = np.quantile(values, share, method="inverted_cdf")
        # Truncated to 12 significant bits after one rounding to float32.
        assert exact * (1 - 2.0**-11) <= found <= exact * (1 + 2.0**-24)


def test_codes_and_histogram_agree():
    values = np.abs(np.random.default_rng(1).standard_normal(10_000))
    codes, histogram = Quantiles(), Quantiles()
    codes.add(values)
    histogram.add(values[:5000])
    histogram._fold()
    histogram.add(values[5000:])
    assert codes.counts is None
    assert histogram.counts is not None
    assert codes.at(*SHARES) == histogram.at(*SHARES)


def test_quantiles_take_what_float32_cannot_hold():
    quantiles = Quantiles()
    quantiles.add(np.array([1e300]))
    assert np.isfinite(quantiles.at(0.5)[0])


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 2**32 - 1), st.floats(-1e6, 1e6))
def test_mean_and_standard_error_do_not_depend_on_the_cut(sizes, seed, offset):
    generator = np.random.default_rng(seed)
    parts = [offset + generator.standard_normal(size) for size in sizes]
    everything = np.concatenate(parts)
    cut = UnitMean()
    for part in parts:
        cut.add(part, np.ones(part.size))
    if everything.size >= 2:
        # float64 roundings of the sums, relative to the offset: 240 values, 2^-53 each.
        assert cut.mean() == pytest.approx(everything.mean(), abs=1e-13 * (1 + abs(offset)))
        expected = everything.std(ddof=1) / np.sqrt(everything.size)
        assert cut.standard_error() == pytest.approx(expected, rel=1e-6)
    else:
        assert cut.standard_error() is None


def test_rows_are_the_units_where_elements_move_together():
    """64 elements that share one error are one piece of evidence, not 64."""
    generator = np.random.default_rng(1)
    error = np.repeat(generator.standard_normal((500, 1)), 64, axis=1)
    rows, elements = UnitMean(), UnitMean()
    rows.add(error.sum(axis=1), np.full(500, 64.0))
    elements.add(error.ravel(), np.ones(error.size))
    assert rows.mean() == pytest.approx(elements.mean())
    assert rows.standard_error() == pytest.approx(8 * elements.standard_error(), rel=2e-3)


def test_units_without_elements_do_not_count():
    mean = UnitMean()
    mean.add(np.array([0.0, 3.0, 5.0, 0.0]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert mean.mean() == 4.0
    assert mean.standard_error() == pytest.approx(1.0)


def test_the_first_of_equal_maxima_is_named():
    largest = Largest()
    largest.add(np.array([[1.0, 7.0], [7.0, 2.0]]), 10)
    largest.add(np.array([7.0]), 14)
    assert (largest.value, largest.position) == (7.0, 11)
