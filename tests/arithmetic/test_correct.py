"""Correctly rounded 2^x, 1/x and log2 x: against balls on hard points, against another road on whole octaves."""

from __future__ import annotations

import flint
import numpy as np
import pytest
from numba import njit

from fa4verify.arithmetic import correct, mufu
from tests.arithmetic.nearest import ball_exp2, ball_log2, nearest, nearest_of_ball

F32 = np.float32
BOUND = 2.0**-57


def octave(first_code: int) -> np.ndarray:
    return np.arange(first_code, first_code + 2**23, dtype=np.uint32).view(F32)


@njit
def _exp2_pairs(x, power, high, low):
    for i in range(x.size):
        power[i], high[i], low[i] = correct.exp2_pair(x[i])


@njit
def _log2_pairs(x, high, low):
    for i in range(x.size):
        high[i], low[i] = correct.log2_pair(x[i])


@njit
def _round_pairs(high, low, out):
    for i in range(out.size):
        out[i] = correct.round_pair(high[i], low[i])


def points(generator: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Return float32 in a range: uniform, beside every multiple of 1/128, and of small size."""
    steps = np.arange(low, high, 1 / 128)[:: max(1, int((high - low) * 128 / 2000))].astype(F32)
    small = np.geomspace(2.0**-40, 1.0, 600)
    every = [generator.uniform(low, high, 1500), steps, np.nextafter(steps, F32(0)), small, -small]
    x = np.concatenate(every).astype(F32)
    return x[(x >= low) & (x < high) & (x != 0)]


def test_error_bound_of_the_exp2_pair():
    """Relative error below 2^-57, and below 2^-50 |x| where the result is next to 1."""
    x = points(np.random.Generator(np.random.Philox(key=3)), -126.0, 128.0)
    power, high, low = np.empty(x.size, np.int64), np.empty(x.size), np.empty(x.size)
    _exp2_pairs(x, power, high, low)
    with flint.ctx.workprec(200):
        for row in zip(x.tolist(), power.tolist(), high.tolist(), low.tolist(), strict=True):
            exact = ball_exp2(row[0] - row[1])
            assert abs(flint.arb(row[2]) + flint.arb(row[3]) - exact) / exact < BOUND * min(1.0, 128 * abs(row[0])), row


def test_error_bound_of_the_log2_pair():
    generator = np.random.Generator(np.random.Philox(key=4))
    beside_one = np.concatenate([1 + np.geomspace(2.0**-23, 0.01, 500), 1 - np.geomspace(2.0**-24, 0.01, 500)])
    rows = np.concatenate([1 + np.arange(128) / 128, np.nextafter(1 + np.arange(1, 129) / 128, 0)])
    codes = generator.integers(0x00800000, 0x7F800000, 2000).astype(np.uint32)
    x = np.concatenate([beside_one.astype(F32), rows.astype(F32), codes.view(F32)])
    x = x[np.frexp(x)[0] != 0.5]  # powers of two are exact: see below
    high, low = np.empty(x.size), np.empty(x.size)
    _log2_pairs(x, high, low)
    with flint.ctx.workprec(200):
        for row in zip(x.tolist(), high.tolist(), low.tolist(), strict=True):
            exact = ball_log2(row[0])
            assert abs((flint.arb(row[1]) + flint.arb(row[2]) - exact) / exact) < BOUND, row


# The closest to a rounding boundary over every float32, found by tests/golden/rounding_margins.py.
HARDEST_EXP2 = ("0x1.853a6ep-9", "-0x1.e7526ep-6")
HARDEST_LOG2 = ("0x1.40f572p-2",)


@pytest.mark.parametrize("point", HARDEST_EXP2)
def test_hardest_points_of_exp2(point):
    x = float.fromhex(point)
    assert float(mufu.ex2_array(F32(x), correct=True)) == nearest_of_ball(ball_exp2(x))


@pytest.mark.parametrize("point", HARDEST_LOG2)
def test_hardest_points_of_log2(point):
    x = float.fromhex(point)
    assert float(mufu.lg2_array(F32(x), correct=True)) == nearest_of_ball(ball_log2(x))


@pytest.mark.parametrize("first_code", [0xBF800000, 0x3F800000, 0xBC800000, 0x3B000000], ids=hex)
def test_exp2_on_whole_octaves(first_code):
    x = octave(first_code)
    assert np.array_equal(mufu.ex2_array(x, correct=True), nearest(x, np.exp2, ball_exp2))


@pytest.mark.parametrize("first_code", [0x3F000000, 0x3F800000, 0x3E800000, 0x7F000000], ids=hex)
def test_log2_on_whole_octaves(first_code):
    x = octave(first_code)
    assert np.array_equal(mufu.lg2_array(x, correct=True), nearest(x, np.log2, ball_log2))


def test_rcp_on_whole_octaves():
    """A float64 quotient rounded again is the rounded quotient: 53 >= 2 * 24 + 2 (Figueroa 1995)."""
    for first_code in (0x3F800000, 0xC0000000, 0x7E800000):
        x = octave(first_code)
        want = (1.0 / x.astype(np.float64)).astype(F32)
        want = np.where(np.abs(want) < F32(2.0**-126), np.copysign(F32(0), x), want)
        assert np.array_equal(mufu.rcp_array(x, correct=True), want)


def test_powers_of_two_are_exact():
    exponents = np.arange(-126, 128, dtype=F32)
    powers = np.exp2(exponents.astype(np.float64)).astype(F32)  # np.exp2 of float32 gives 2^127 one ulp high
    assert np.array_equal(mufu.ex2_array(exponents, correct=True), powers)
    assert np.array_equal(mufu.lg2_array(powers, correct=True), exponents)


def test_ties_are_broken_by_the_low_part():
    """On the middle of two float32 the low part decides, and ties to even without one; float32(high) cannot do that."""
    codes = np.array([0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x41234567, 0x41234568], np.uint32)
    below, above = codes.view(F32), (codes + 1).view(F32)
    middle = (below.astype(np.float64) + above.astype(np.float64)) / 2
    even = np.where(codes % 2 == 0, below, above)
    for tiny in (2.0**-54, 2.0**-70, 2.0**-1000):
        for sign in (1, -1):
            for low, want in ((tiny, above), (-tiny, below), (0.0, even)):
                out = np.empty_like(below)
                _round_pairs(sign * middle, np.full(middle.size, sign * low), out)
                assert np.array_equal(out, sign * want)
                assert low == 0.0 or np.any((sign * (middle + low)).astype(F32) != out)
