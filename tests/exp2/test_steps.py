"""Correct rounding of 2^x to the small formats as a staircase, against mpmath and the definition of rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fa4verify.arithmetic.formats import round_to
from fa4verify.exp2.steps import FORMATS, staircase
from tests.exp2.oracle import INFINITY, number, power, to_format

CASES = [(fmt, negative) for fmt in FORMATS for negative in (False, True)]
IDS = [f"{fmt.name}{'-' if negative else '+'}" for fmt, negative in CASES]


def tread(stair, code):
    return int(np.searchsorted(stair.at, code, side="right"))


@pytest.mark.parametrize(("fmt", "negative"), CASES, ids=IDS)
def test_a_tread_holds_what_rounds_to_one_number(fmt, negative):
    """Its ends round alike, and the float32 beyond each end otherwise."""
    stair = staircase(fmt, negative)
    low = stair.low.astype(np.int64)
    high = low + stair.width
    values = [
        round_to(codes.astype(np.uint32).view(np.float32), fmt, saturate=not fmt.has_infinity)
        for codes in (low, high, np.maximum(low - 1, 0), np.minimum(high + 1, 0x7F800000))
    ]
    assert np.array_equal(values[0], values[1])
    assert np.all((values[2] < values[0]) | (low == 0))
    assert np.all((values[3] > values[0]) | (high == 0x7F800000))
    assert np.all(np.diff(values[0]) < 0 if negative else np.diff(values[0]) > 0)


@pytest.mark.parametrize(("fmt", "negative"), CASES, ids=IDS)
def test_treads_begin_where_the_rounded_power_changes(fmt, negative):
    """At the first and last steps, the closest to 0, ties and 150 others: before it and on it, mpmath agrees."""
    stair = staircase(fmt, negative)
    steps = stair.at[:-1]
    generator = np.random.Generator(np.random.Philox(key=7))
    whole = np.flatnonzero(np.modf(np.array([number(code) for code in steps]))[0] == 0)
    chosen = {0, 1, steps.size - 1, *whole.tolist(), *generator.integers(0, steps.size, 150).tolist()}
    for k in sorted(chosen):
        for code in (int(steps[k]) - 1, int(steps[k])):
            if abs(number(code)) < 1e-30:
                continue
            want = to_format(power(number(code)), fmt.name)
            index = tread(stair, code)
            low = round_to(np.float32(number(int(stair.low[index]))), fmt, saturate=not fmt.has_infinity)
            got = INFINITY[fmt.name] if np.isinf(low) else Fraction(float(low))
            assert got == want, (fmt.name, hex(code))


@pytest.mark.parametrize(("fmt", "negative"), CASES, ids=IDS)
def test_random_inputs_stand_on_the_right_tread(fmt, negative):
    stair = staircase(fmt, negative)
    generator = np.random.Generator(np.random.Philox(key=8))
    x = generator.uniform(0, 30, 100).astype(np.float32) * np.float32(-1 if negative else 1)
    for value in x.tolist():
        code = int(np.float32(value).view(np.uint32))
        want = to_format(power(value), fmt.name)
        k = tread(stair, code)
        for end in (int(stair.low[k]), int(stair.low[k]) + int(stair.width[k])):
            found = number(end)
            assert (INFINITY[fmt.name] if np.isinf(found) else to_format(Fraction(found), fmt.name)) == want


def test_ties_go_to_the_even_neighbour():
    """2^-25 is half of fp16's smallest number, 2^-10 of e4m3's: both round to 0, and anything above does not."""
    for name, tie in (("fp16", -25.0), ("e4m3", -10.0)):
        fmt = next(fmt for fmt in FORMATS if fmt.name == name)
        stair = staircase(fmt, True)
        code = int(np.float32(tie).view(np.uint32))
        assert int(stair.low[tread(stair, code)]) == 0
        assert int(stair.low[tread(stair, code - 1)]) > 0


def test_no_two_steps_of_a_format_in_one_block():
    """`passes` splits a block of 512 once; the closest steps within [-127, 128) are further apart."""
    for fmt, negative in CASES:
        steps = staircase(fmt, negative).at[:-1]
        assert np.diff(steps[steps < (0xC2FE0000 if negative else 0x43000000)]).min() >= 700
