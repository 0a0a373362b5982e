"""The special-function unit: figures measured on an H200, its recording, specials, and twins off by one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from fa4verify.arithmetic import mufu
from fa4verify.arithmetic.bits import bits_of, float_of
from tests.arithmetic.nearest import ball_exp2, ball_log2, nearest

F32 = np.float32
RECORDING = json.loads((Path(__file__).parents[1] / "golden" / "mufu_h200.json").read_text())
ROUNDING = {"ex2": 0x77E2, "rcp": 0x47E7, "lg2": 0x3345}


def octave(first_code: int) -> np.ndarray:
    return np.arange(first_code, first_code + 2**23, dtype=np.uint32).view(F32)


@njit
def _apply(function, x, rounding, out):
    for i in range(out.size):
        if function == 0:
            out[i] = mufu.ex2_with(x[i], rounding)
        elif function == 1:
            out[i] = mufu.rcp_with(x[i], rounding)
        else:
            out[i] = mufu.lg2_with(x[i], rounding)


def turned(name: str, x: np.ndarray, by: int) -> np.ndarray:
    """Return the model with its rounding constant turned by a step."""
    out = np.empty_like(x)
    _apply(list(ROUNDING).index(name), x, ROUNDING[name] + by, out)
    return out


def test_squarer_is_the_sum_of_cut_partial_products():
    x = np.arange(2**17, dtype=np.int64)
    want = sum(np.where(x >> i & 1, x >> (18 - i), 0) for i in range(17)) >> 1
    got = np.array([mufu.squarer(value) for value in x[:: 2**6 + 1].tolist()])
    assert np.array_equal(got, want[:: 2**6 + 1])
    out = np.empty_like(x)
    _squares(x, out)
    assert np.array_equal(out, want)


@njit
def _squares(x, out):
    for i in range(x.size):
        out[i] = mufu.squarer(x[i])


def ulp_histogram(y: np.ndarray, reference: np.ndarray) -> dict[int, int]:
    steps, counts = np.unique(y.view(np.int32).astype(np.int64) - reference.view(np.int32), return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


# Counts on an H200 of steps from the correctly rounded result.
EX2_NEGATIVE = {-2: 86_537, -1: 4_959_061, 0: 3_342_935, 1: 75}
EX2_POSITIVE = {-1: 3_093, 0: 5_125_875, 1: 3_259_640}
RCP = {-1: 374_723, 0: 7_280_086, 1: 733_799}


def test_ex2_on_the_negative_octave():
    x = octave(0xBF800000)
    reference = nearest(x, np.exp2, ball_exp2)
    y = mufu.ex2_array(x)
    assert ulp_histogram(y, reference) == EX2_NEGATIVE
    error = y / np.exp2(x.astype(np.float64)) - 1.0
    assert f"{np.abs(error).max():.4e}" == "1.4396e-07"
    assert f"{np.sqrt(np.mean(error * error)):.3e}" == "5.795e-08"
    assert f"{error.mean():.3e}" == "-4.947e-08"
    assert ulp_histogram(turned("ex2", x, 0), reference) == EX2_NEGATIVE
    for by in (1, -1):
        assert ulp_histogram(turned("ex2", x, by), reference) != EX2_NEGATIVE


def test_ex2_on_the_positive_octave():
    x = octave(0x3F800000)
    reference = nearest(x, np.exp2, ball_exp2)
    y = mufu.ex2_array(x)
    assert ulp_histogram(y, reference) == EX2_POSITIVE
    assert f"{np.mean(y / np.exp2(x.astype(np.float64)) - 1.0):.1e}" == "3.3e-08"
    for by in (1, -1):
        assert ulp_histogram(turned("ex2", x, by), reference) != EX2_POSITIVE


def test_ex2_treats_the_signs_differently():
    """Arguments of equal fraction give other significands at 91 % of the fractions: the one's complement."""
    fractions = np.arange(1, 2**23) / 2**23
    positive, negative = mufu.ex2_array((1 + fractions).astype(F32)), mufu.ex2_array((fractions - 2).astype(F32))
    assert round(100 * float(np.mean(positive / 8 != negative))) == 91


def test_rcp_on_an_octave():
    x = octave(0x3F800000)
    reference = (1.0 / x.astype(np.float64)).astype(F32)  # innocuous: 53 >= 2 * 24 + 2
    assert ulp_histogram(mufu.rcp_array(x), reference) == RCP
    for by in (1, -1):
        assert ulp_histogram(turned("rcp", x, by), reference) != RCP


def test_lg2_on_an_octave():
    """The largest absolute error is 0.670 * 2^-22; a step of the constant is 2^-38, so counts, not it, see the twin."""
    x = octave(0x3F800000)
    exact = np.log2(x.astype(np.float64))
    error = np.abs(mufu.lg2_array(x) - exact)
    assert round(float(error.max() * 2**22), 3) == 0.670
    reference = nearest(x[1:], np.log2, ball_log2)  # log2 1 = 0 is exact in both
    steps = ulp_histogram(mufu.lg2_array(x[1:]), reference)
    for by in (1, -1):
        assert ulp_histogram(turned("lg2", x[1:], by), reference) != steps


@njit
def _checksum(function, block, rounding):
    """Sum splitmix64's finalizer over (input, result) of a block, as tests/golden/mufu_exhaustive.py does on a GPU."""
    total = np.uint64(0)
    for fraction in range(2**23):
        code = (block << 23) | fraction
        x = float_of(code, np.float32(0))
        if function == 0:
            y = mufu.ex2_with(x, rounding)
        elif function == 1:
            y = mufu.rcp_with(x, rounding)
        else:
            y = mufu.lg2_with(x, rounding)
        bits = np.uint64(bits_of(y)) if y == y else np.uint64(0x7FFFFFFF)
        z = ((np.uint64(code) << np.uint64(32)) | bits) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += z ^ (z >> np.uint64(31))
    return total


# Zeros and subnormals, the exponents where each function changes its ways, the ends, infinity and NaN; both signs.
BLOCKS = {
    "ex2": (0, 1, 103, 104, 120, 126, 127, 133, 134, 255, 256, 360, 382, 383, 389, 390, 511),
    "rcp": (0, 1, 127, 252, 253, 254, 255, 256, 383, 509, 510, 511),
    "lg2": (0, 1, 63, 125, 126, 127, 128, 254, 255, 256, 257, 511),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_recorded_checksums_of_the_device(name):
    """The model here and the one that the device script proved on all 2^32 inputs give the same results."""
    recorded = RECORDING["functions"][name]
    assert recorded["mismatches"] == 0
    assert recorded["mutant_mismatches"] == recorded["mutant_expected"] > 0
    number = list(ROUNDING).index(name)
    for block in BLOCKS[name]:
        assert f"{_checksum(number, block, ROUNDING[name]):016x}" == recorded["checksums"][block], block


@pytest.mark.parametrize("name", BLOCKS)
def test_the_checksums_see_a_rounding_constant_off_by_one(name):
    block = 127
    recorded = RECORDING["functions"][name]["checksums"][block]
    number = list(ROUNDING).index(name)
    for by in (1, -1):
        assert f"{_checksum(number, block, ROUNDING[name] + by):016x}" != recorded


NAN_PATTERNS = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32).view(F32)
TINY, LEAST = 2.0**-149, 2.0**-126
BELOW_LEAST = LEAST - TINY
SPECIALS = {
    "ex2": [
        (np.inf, np.inf), (-np.inf, 0.0), (0.0, 1.0), (-0.0, 1.0), (TINY, 1.0), (-TINY, 1.0), (BELOW_LEAST, 1.0),
        (-BELOW_LEAST, 1.0), (128.0, np.inf), (3.4e38, np.inf), (127.0, 2.0**127), (-126.0, LEAST), (-126.00001, 0.0),
        (-127.0, 0.0), (-149.0, 0.0), (-3.4e38, 0.0), (1.0, 2.0), (-1.0, 0.5),
    ],
    "rcp": [
        (np.inf, 0.0), (-np.inf, -0.0), (0.0, np.inf), (-0.0, -np.inf), (TINY, np.inf), (-TINY, -np.inf),
        (BELOW_LEAST, np.inf), (-BELOW_LEAST, -np.inf), (LEAST, 2.0**126), (2.0**126, LEAST), (-(2.0**126), -LEAST),
        (2.0**126 * (1 + 2.0**-23), 0.0), (-(2.0**126) * (1 + 2.0**-23), -0.0), (3.4e38, 0.0), (-3.4e38, -0.0),
        (1.0, 1.0), (-2.0, -0.5),
    ],
    "lg2": [
        (np.inf, np.inf), (-np.inf, np.nan), (0.0, -np.inf), (-0.0, -np.inf), (TINY, -np.inf), (-TINY, -np.inf),
        (BELOW_LEAST, -np.inf), (-BELOW_LEAST, -np.inf), (-LEAST, np.nan), (-1.0, np.nan),
        (-3.4e38, np.nan), (1.0, 0.0), (2.0, 1.0), (2.0**127, 127.0),
    ],
}  # fmt: skip
ARRAYS = {"ex2": mufu.ex2_array, "rcp": mufu.rcp_array, "lg2": mufu.lg2_array}


@pytest.mark.parametrize("correct", [False, True], ids=["mufu", "correct"])
@pytest.mark.parametrize("name", SPECIALS)
def test_specials(name, correct):
    x, want = np.array(SPECIALS[name]).T.astype(F32)
    got = ARRAYS[name](x, correct=correct)
    same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
    assert np.all(same), [(float(a), float(b)) for a, b in zip(x[~same], got[~same], strict=True)]
    assert np.all(np.isnan(ARRAYS[name](NAN_PATTERNS, correct=correct)))


def test_lg2_of_powers_of_two_below_one_misses_the_integer():
    """The row's offset and the one's complement leave lg2(1/2) two ulp short; only 1 itself is a special case."""
    powers = np.exp2(np.arange(-126.0, 128.0)).astype(F32)
    exact = np.arange(-126, 128).astype(F32)
    assert mufu.lg2_array(F32(0.5)) == F32(-1 + 2.0**-23)
    assert mufu.lg2_array(F32(LEAST)) == F32(-126 + 2.0**-17)
    assert np.all(mufu.lg2_array(powers[:126]) > exact[:126])
    assert np.array_equal(mufu.lg2_array(powers[126:]), exact[126:])
    assert np.array_equal(mufu.lg2_array(powers, correct=True), exact)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_keep_shape_and_take_float32_alone(name):
    assert ARRAYS[name](np.ones((2, 0, 3), F32)).shape == (2, 0, 3)
    assert ARRAYS[name](F32(1)).shape == ()
    with pytest.raises(TypeError, match="float64"):
        ARRAYS[name](np.ones(2))


@njit
def _all_scalars(x, out):
    for i in range(x.size):
        out[0, i], out[1, i], out[2, i] = mufu.ex2(x[i]), mufu.rcp(x[i]), mufu.lg2(x[i])
        out[3, i], out[4, i] = mufu.ex2_correct(x[i]), mufu.rcp_correct(x[i])
        out[5, i] = mufu.lg2_correct(x[i])


def test_scalars_equal_arrays():
    x = (np.arange(2**17, dtype=np.uint32) * np.uint32(32749)).view(F32)
    out = np.empty((6, x.size), F32)
    _all_scalars(x, out)
    want = [ARRAYS[name](x, correct=correct) for correct in (False, True) for name in ("ex2", "rcp", "lg2")]
    for got, array in zip(out, want, strict=True):
        assert np.array_equal(got, array, equal_nan=True)
    assert any(np.any(a != b) for a, b in zip(out[:3], out[3:], strict=True))
