"""The vector evaluation against the scalar floor, and reduction to nearest against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_array
from fa4verify.exp2.evaluate import evaluate, evaluate_bits

F32 = np.float32
DEGREE_6 = (1.0, *(float(F32(np.log(2.0) ** k / f)) for k, f in ((1, 1), (2, 2), (3, 6), (4, 24), (5, 120), (6, 720))))
DEGREE_7 = (*DEGREE_6, float(F32(np.log(2.0) ** 7 / 5040)))
SETS = {**POLY_EX2, 6: DEGREE_6, 7: DEGREE_7}
ODD = {
    "below one": (0.999, 0.695, 0.2276, 0.0771),
    "above two": (1.0, 0.75, 0.5),
    "negative": (-1.0, 0.5),
    "tiny": (0.0, 1e-40),
}


def rounded(values):
    return tuple(float(F32(value)) for value in values)


def same_bits(got, want):
    """Equal bits, or both NaN: the recipe adds bits, so that even a NaN's payload is defined."""
    return np.array_equal(got.view(np.uint32), want.view(np.uint32))


def patterns(first, count, stride=1):
    return (first + stride * np.arange(count, dtype=np.uint64)).astype(np.uint32)


@pytest.mark.parametrize("degree", SETS)
def test_stratified_over_all_bit_patterns(degree):
    """2^16 patterns of each of 256 places: 2^24 inputs in all, every sign and exponent among them."""
    stride, count = 251, 2**24
    got = evaluate_bits(17 + degree, count, SETS[degree], stride=stride)
    assert same_bits(got, ex2_emulation_array(patterns(17 + degree, count, stride).view(F32), SETS[degree]))


@pytest.mark.parametrize("name", ODD)
def test_sets_that_wrap_and_give_nan(name):
    coefficients = rounded(ODD[name])
    got = evaluate_bits(3, 2**21, coefficients, stride=2039)
    assert same_bits(got, ex2_emulation_array(patterns(3, 2**21, 2039).view(F32), coefficients))
