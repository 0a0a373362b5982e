"""The vector evaluation against the scalar floor, and reduction to nearest against exact fractions."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_array
from fa4verify.exp2.evaluate import evaluate, evaluate_bits
from tests.exp2.oracle import recipe

F32 = np.float32
TAYLOR = tuple(float(F32(math.log(2) ** k / math.factorial(k))) for k in range(8))
SETS = {**POLY_EX2, 6: TAYLOR[:7], 7: TAYLOR}
ODD = {
    "below one": (0.999, 0.695, 0.2276, 0.0771),
    "above two": (1.0, 0.75, 0.5),
    "negative": (-1.0, 0.5),
    "tiny": (0.0, 1e-40),
    "huge": (1e38, 3e38, 3e38),
}


def rounded(values):
    return tuple(float(F32(value)) for value in values)


def same(got, want):
    """Equal bits, or both NaN."""
    return np.array_equal(np.isnan(got), np.isnan(want)) and bool(
        np.all((got.view(np.uint32) == want.view(np.uint32)) | np.isnan(got))
    )


def patterns(first, count, stride=1):
    return (first + stride * np.arange(count, dtype=np.uint64)).astype(np.uint32).view(F32)


@pytest.mark.parametrize("degree", SETS)
def test_stratified_over_all_bit_patterns(degree):
    """2^24 inputs, 251 patterns apart: every sign and exponent, the NaN among them."""
    stride, count = 251, 2**24
    got = evaluate_bits(17 + degree, count, SETS[degree], stride=stride)
    assert same(got, ex2_emulation_array(patterns(17 + degree, count, stride), SETS[degree]))


SPECIAL_PLACES = (0x00000000, 0x3F800000, 0x42FE0000, 0x43000000, 0x4A800000, 0x4B400000, 0x7F800000,
                  0x80000000, 0x80800000, 0xB3000000, 0xBF800000, 0xC2FC0000, 0xC2FE0000, 0xFF800000)  # fmt: skip


@pytest.mark.parametrize("ftz", [False, True])
@pytest.mark.parametrize("place", SPECIAL_PLACES, ids=hex)
def test_around_special_bit_patterns(place, ftz):
    """Each place in the middle, and counts that are no multiple of a vector."""
    first = max(place - 1003, 0)
    for coefficients in (POLY_EX2[3], *map(rounded, ODD.values())):
        got = evaluate_bits(first, 2011, coefficients, ftz=ftz)
        assert same(got, ex2_emulation_array(patterns(first, 2011), coefficients, ftz=ftz))


@pytest.mark.parametrize("name", ODD)
def test_sets_that_wrap_and_give_nan(name):
    coefficients = rounded(ODD[name])
    got = evaluate_bits(3, 2**20, coefficients, stride=4093)
    assert same(got, ex2_emulation_array(patterns(3, 2**20, 4093), coefficients))


@pytest.mark.parametrize("reduction", ["floor", "nearest"])
@pytest.mark.parametrize("degree", [0, 1, 3, 7])
def test_recipe_in_exact_arithmetic(degree, reduction):
    generator = np.random.Generator(np.random.Philox(key=3))
    halves = (np.arange(-40, 40) / 2).astype(F32)
    x = np.concatenate([
        generator.uniform(-120, 120, 400), -np.geomspace(2.0**-30, 1.0, 100), halves,
        np.nextafter(halves, F32(-1000)), np.nextafter(halves, F32(1000)),
    ]).astype(F32)  # fmt: skip
    want = np.array([recipe(value, SETS[degree], reduction) for value in x.tolist()])
    assert np.array_equal(evaluate(x, SETS[degree], reduction), want)


def test_nearest_in_vectors_and_one_by_one():
    for first, count, stride in ((5, 2**19, 8191), (0xBF000000 - 77, 2**16, 1), (0xC2FC0000, 2**18, 1)):
        got = evaluate_bits(first, count, SETS[5], "nearest", stride=stride)
        assert same(got, evaluate(patterns(first, count, stride), SETS[5], "nearest"))


def test_nearest_differs_from_floor_where_the_fraction_is_above_one_half():
    x = np.array([-0.25, -0.75, -1.25, 0.75, -2.0], F32)
    floor, nearest = (evaluate(x, SETS[3], reduction) for reduction in ("floor", "nearest"))
    assert np.array_equal(floor != nearest, [True, False, True, True, False])


def test_ftz_changes_negative_subnormals_alone():
    packed, scalar = (evaluate_bits(0x80000000 - 50, 2**23 + 100, SETS[3], ftz=ftz) for ftz in (False, True))
    changed = np.flatnonzero(packed != scalar)
    assert (changed[0], changed[-1], changed.size) == (51, 50 + 2**23 - 1, 2**23 - 1)


def test_out_is_filled():
    out = np.empty(100, F32)
    got = evaluate_bits(0xBF800000, 50, SETS[2], out=out)
    assert np.shares_memory(got, out)
    assert np.array_equal(got, evaluate_bits(0xBF800000, 50, SETS[2]))


@pytest.mark.parametrize(("first", "count", "stride"), [(-1, 1, 1), (0, -1, 1), (0, 1, 0), (2**32 - 1, 2, 1)])
def test_patterns_that_do_not_exist(first, count, stride):
    with pytest.raises(ValueError, match="no such bit patterns"):
        evaluate_bits(first, count, SETS[1], stride=stride)


def test_coefficients_that_do_not_fit():
    with pytest.raises(ValueError, match="at most 7"):
        evaluate_bits(0, 1, (1.0,) * 9)
    with pytest.raises(ValueError, match="float32 holds exactly"):
        evaluate(F32(1), (0.1,))


WITHOUT_AVX512 = """
import numpy as np
from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation_array
from fa4verify.exp2.evaluate import evaluate_bits
for first, count, stride in ((9, 2**18, 16381), (0xC2FE0000 - 2**16, 2**17, 1), (0x4A7F0000, 2**17, 1)):
    x = (first + stride * np.arange(count, dtype=np.uint64)).astype(np.uint32).view(np.float32)
    got, want = evaluate_bits(first, count, POLY_EX2[3], stride=stride), ex2_emulation_array(x, POLY_EX2[3])
    assert np.all((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want)))
print("equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="names an x86 processor to numba")
def test_processors_without_avx512(tmp_path):
    """TwoSum in place of the addition that rounds down."""
    chosen = {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+sse4.2",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-c", WITHOUT_AVX512]
    done = subprocess.run(command, env={**os.environ, **chosen}, capture_output=True, text=True, timeout=300)
    assert done.stdout == "equal\n", done.stderr
