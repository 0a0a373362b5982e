"""FA4's software exponential: the recipe in exact arithmetic, its specials, and every figure published or measured."""

from __future__ import annotations

import ast
import importlib.util
import math
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from fa4verify.arithmetic import formats, mufu
from fa4verify.arithmetic.exp2 import POLY_EX2, ex2_emulation, ex2_emulation_array, ex2_emulation_ftz
from fa4verify.arithmetic.fma import fma

F32 = np.float32
SNAN = np.array([0x7FA00000], np.uint32).view(F32)[0]


def octave(first_code: int) -> np.ndarray:
    """Return the 2^23 float32 of one sign and exponent."""
    return np.arange(first_code, first_code + 2**23, dtype=np.uint32).view(F32)


@lru_cache
def errors(degree: int) -> np.ndarray:
    """Return the relative errors over all x of -[1, 2), those of docs/arithmetic.md."""
    x = octave(0xBF800000)
    return ex2_emulation_array(x, POLY_EX2[degree]).astype(np.float64) / np.exp2(x.astype(np.float64)) - 1.0


def shown(value: float, digits: str) -> str:
    """Print a value the way a published figure was printed."""
    mantissa = digits.lstrip("+-").split("e")[0]
    text = f"{value:.{len(mantissa) - 2}e}"
    head, exponent = text.split("e")
    return f"{'+' if digits.startswith('+') and value > 0 else ''}{head}e{int(exponent)}"


# FA4's own scalar form on an NVIDIA H200 over all x of -[1, 2) (docs/arithmetic.md): maximum, rms, signed mean.
ON_H200 = {
    1: ("3.8751e-2", "2.6468e-2", "+1.5935e-2"),
    2: ("2.0756e-3", "1.4450e-3", "-8.97e-8"),
    3: ("8.7688e-5", "6.0286e-5", "+8.2368e-6"),
    4: ("3.0485e-6", "2.0392e-6", "-3.17e-8"),
    5: ("1.4432e-7", "6.3532e-8", "+3.36e-9"),
}


@pytest.mark.parametrize("degree", ON_H200)
def test_error_figures_of_the_device(degree):
    error = errors(degree)
    figures = float(np.abs(error).max()), math.sqrt(float(np.mean(error * error))), float(error.mean())
    assert tuple(shown(*pair) for pair in zip(figures, ON_H200[degree], strict=True)) == ON_H200[degree]


def test_degree_zero_is_a_staircase():
    x = octave(0xBF800000)
    assert np.array_equal(ex2_emulation_array(x, POLY_EX2[0]), np.exp2(np.floor(x).astype(np.float64)))


# Paper (arXiv 2603.05451), Table 2: 4M points of [0, 1); maximum and mean of the absolute relative error; then the
# maximum after rounding to bf16.
PAPER = {
    3: ("8.77e-5", "5.43e-5", "3.90e-3"),
    4: ("3.05e-6", "1.84e-6", "3.89e-3"),
    5: ("1.44e-7", "5.48e-8", "3.89e-3"),
}


@pytest.mark.parametrize("degree", PAPER)
def test_table_2_of_the_paper(degree):
    x = (np.arange(2**22) / 2**22).astype(F32)
    exact = np.exp2(x.astype(np.float64))
    y = ex2_emulation_array(x, POLY_EX2[degree])
    error = np.abs(y / exact - 1.0)
    in_bf16 = np.abs(formats.round_to(y, formats.BF16) / exact - 1.0)
    figures = float(error.max()), float(error.mean()), float(in_bf16.max())
    assert tuple(shown(*pair) for pair in zip(figures, PAPER[degree], strict=True)) == PAPER[degree]


# Fractions k / 2^24: maximum, rms, share that differs from the rounded truth in bf16 and in fp16 (percent).
PROTOTYPE = {
    1: ("3.8751e-2", "2.6468e-2", 95, 99),
    2: ("2.0756e-3", "1.4450e-3", 23.9, 89),
    3: ("8.7688e-5", "6.0286e-5", 0.997, 7.97),
    4: ("3.0487e-6", "2.0392e-6", 0.034, 0.27),
    5: ("1.4432e-7", "6.354e-8", 0.0011, 0.0087),
}


@pytest.mark.parametrize("degree", PROTOTYPE)
def test_fractions_of_two_to_the_minus_24(degree):
    x = (-np.arange(2**24) / 2**24).astype(F32)
    exact = np.exp2(x.astype(np.float64))
    y = ex2_emulation_array(x, POLY_EX2[degree])
    error = y / exact - 1.0
    maximum, rms, bf16, fp16 = PROTOTYPE[degree]
    assert shown(float(np.abs(error).max()), maximum) == maximum
    assert shown(math.sqrt(float(np.mean(error * error))), rms) == rms
    for fmt, percent in ((formats.BF16, bf16), (formats.FP16, fp16)):
        share = 100 * float(np.mean(formats.round_to(y, fmt) != formats.round_to(exact, fmt)))
        digits = len(str(percent).partition(".")[2])
        assert round(share, digits) == percent


def test_largest_error_of_degree_5_below_one_half():
    """Below 1 in size f = x + 1 is rounded, which degree 5 alone is sharp enough to show: 1.5567e-7 at -0.279."""
    x = octave(0xBE800000)
    error = np.abs(ex2_emulation_array(x, POLY_EX2[5]) / np.exp2(x.astype(np.float64)) - 1.0)
    assert shown(float(error.max()), "1.5567e-7") == "1.5567e-7"
    assert round(float(x[error.argmax()]), 3) == -0.279


@pytest.mark.parametrize(("degree", "jump"), [(1, 650142), (2, 34460), (3, 1429), (4, 48), (5, 2)])
def test_monotone_inside_an_octave_and_the_jump_at_integers(degree, jump):
    y = ex2_emulation_array(octave(0xBF800000), POLY_EX2[degree])  # x falls from -1 to the float32 above -2
    assert np.all(np.diff(y) <= 0)
    just_below_zero = ex2_emulation_array(F32(-(2.0**-26)), POLY_EX2[degree])  # the fraction rounds to 1
    assert int(F32(1).view(np.int32)) - int(just_below_zero.view(np.int32)) == jump


SPECIALS = [
    (np.nan, 0x00000000),
    (-np.nan, 0x00000000),
    (SNAN, 0x00000000),
    (-np.inf, 0x00000000),
    (-3.4e38, 0x00000000),
    (-127.5, 0x00000000),
    (-127.0, 0x00000000),
    (-126.0, 0x00800000),
    (-(2.0**-26), 0x3F7FFA6B),
    (-(2.0**-149), 0x3F7FFA6B),
    (-(2.0**-127), 0x3F7FFA6B),
    (0.0, 0x3F800000),
    (-0.0, 0x3F800000),
    (2.0**-149, 0x3F800000),
    (2.0**-30, 0x3F800000),
    (128.0, 0x7F800000),
    (129.0, 0x80000000),
    (130.0, 0x80800000),  # -2^-126
    (256.0, 0xBF800000),  # -1
]


@pytest.mark.parametrize(("x", "bits"), SPECIALS, ids=lambda value: str(value))
def test_specials_of_degree_3(x, bits):
    assert int(ex2_emulation_array(F32(x)).view(np.uint32)) == bits


def test_more_specials_of_degree_3():
    def at(x: float) -> float:
        return float(ex2_emulation_array(F32(x)))

    assert f"{at(-126.5):.4e}" == "4.8678e-39"
    assert f"{at(3.4e38):.3e}" == "3.155e-30"
    assert math.isnan(at(np.inf))
    assert np.all(np.isnan(ex2_emulation_array(np.linspace(128.01, 128.99, 50, dtype=F32))))
    integers = np.arange(-126, 128, dtype=F32)
    assert np.array_equal(ex2_emulation_array(integers), np.exp2(integers.astype(np.float64)))
    # a subnormal: (p - 1) * 2^-126 in place of p * 2^-127
    x = np.linspace(-126.99, -126.01, 99, dtype=F32)
    p = ex2_emulation_array(x + F32(27)).astype(np.float64) / 2.0**-100
    assert np.array_equal(ex2_emulation_array(x), (p - 1) * 2.0**-126)


def test_scalar_form_differs_for_negative_subnormals_alone():
    x = np.array([-(2.0**-149), -(2.0**-127), -(2.0**-126), 2.0**-149, -0.5, -126.5, np.nan], F32)
    packed, scalar = ex2_emulation_array(x), ex2_emulation_array(x, ftz=True)
    assert np.array_equal(packed != scalar, [True, True, False, False, False, False, False])
    assert np.array_equal(scalar[:2], np.ones(2, F32))


def recipe(x: float, coefficients: tuple[float, ...], to_whole=math.floor) -> float:
    """Evaluate the recipe by exact rational steps, each rounded to fp32 by the definition; x in (-126, 127).

    `to_whole` reduces x: math.floor as FA4, or round, which goes to even as the magic number does.
    """

    def nearest(value: Fraction) -> Fraction:
        if value == 0:
            return value
        size = abs(value)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent = exponent if Fraction(2) ** exponent <= size else exponent - 1
        spacing = Fraction(2) ** (exponent - 23)
        return round(value / spacing) * spacing

    whole = to_whole(Fraction(x))
    fraction = nearest(Fraction(x) - whole)
    p = Fraction(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        p = nearest(p * fraction + Fraction(coefficient))
    return float(p * Fraction(2) ** whole)


OTHER_SETS = [(1.0, 0.75), (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625), (0.5,), (1.25, -0.25)]


@pytest.mark.parametrize("nearest", [False, True], ids=["floor", "nearest"])
@pytest.mark.parametrize("coefficients", [*POLY_EX2.values(), *OTHER_SETS], ids=len)
def test_recipe_in_exact_arithmetic(coefficients, nearest):
    generator = np.random.Generator(np.random.Philox(key=2))
    x = np.concatenate([
        generator.uniform(-120, 120, 300), -np.geomspace(2.0**-30, 1.0, 100), np.arange(-40, 40) / 8,
        np.nextafter(np.arange(-20, 20, dtype=F32), F32(-1000)), np.nextafter(np.arange(-20, 20, dtype=F32), F32(1000)),
    ]).astype(F32)  # fmt: skip
    want = np.array([recipe(value, coefficients, round if nearest else math.floor) for value in x.tolist()])
    assert np.array_equal(ex2_emulation_array(x, coefficients, nearest=nearest), want)
    if len(coefficients) > 1:  # a constant is the same mantissa, but in other octaves: the twin differs everywhere else
        assert not np.array_equal(ex2_emulation_array(x, coefficients, nearest=not nearest), want)


def test_reduction_to_nearest_meets_masked_scores_as_floor_does():
    """At the clamp f = 0: p0 = 1 gives 0, p0 < 1 gives NaN; there is no scalar form."""
    masked = np.array([-127.0, -128.0, -3.4e38, -np.inf, np.nan], F32)
    assert np.array_equal(ex2_emulation_array(masked, POLY_EX2[3], nearest=True), np.zeros(5, F32))
    below = (1.0 - 2.0**-24, 0.6931472)
    below = tuple(float(F32(c)) for c in below)
    assert np.isnan(ex2_emulation_array(masked, below, nearest=True)).all()
    with pytest.raises(ValueError, match="no ftz form"):
        ex2_emulation_array(masked, ftz=True, nearest=True)


@njit
def _without_fma(x, coefficients, out):
    for i in range(out.size):
        f = x[i] - np.float32(math.floor(x[i]))
        p = coefficients[-1]
        for k in range(coefficients.size - 2, -1, -1):
            p = p * f + coefficients[k]
        out[i] = p


@njit
def _with_fma(x, coefficients, out):
    for i in range(out.size):
        f = x[i] - np.float32(math.floor(x[i]))
        p = coefficients[-1]
        for k in range(coefficients.size - 2, -1, -1):
            p = fma(p, f, coefficients[k])
        out[i] = p


def test_fused_steps_can_be_told_from_separate_ones():
    x = (np.arange(2**16) / 2**16).astype(F32)
    coefficients = np.array(POLY_EX2[3], F32)
    fused, separate = np.empty_like(x), np.empty_like(x)
    _with_fma(x, coefficients, fused)
    _without_fma(x, coefficients, separate)
    emulated = ex2_emulation_array(x)
    assert np.array_equal(emulated, fused)
    assert np.mean(emulated != separate) > 0.05


@njit
def _scalars(x, array, out):
    pair = (array[0], array[1], array[2], array[3])
    for i in range(x.size):
        out[0, i] = ex2_emulation(x[i], array)
        out[1, i] = ex2_emulation(x[i], pair)
        out[2, i] = ex2_emulation_ftz(x[i], pair)


def test_scalars_take_arrays_and_tuples():
    x = np.linspace(-130, 130, 2001, dtype=F32)
    out = np.empty((3, x.size), F32)
    _scalars(x, np.array(POLY_EX2[3], F32), out)
    for row in out:
        assert np.array_equal(row, ex2_emulation_array(x), equal_nan=True)


def test_coefficients_must_be_fp32_numbers():
    for coefficients in ((), (0.1,), (1.0, 2.0**-200), (1e39,)):
        with pytest.raises(ValueError, match="float32 holds exactly"):
            ex2_emulation_array(np.ones(2, F32), coefficients)


def installed_coefficients() -> dict[int, tuple[float, ...]] | None:
    """Read POLY_EX2 off FA4's source; importing flash_attn.cute costs five seconds and warns."""
    spec = importlib.util.find_spec("flash_attn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        source = Path(folder) / "cute" / "utils.py"
        if source.exists():
            for node in ast.parse(source.read_text()).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "POLY_EX2":
                    table = ast.literal_eval(node.value)
                    return {degree: tuple(np.atleast_1d(row).tolist()) for degree, row in table.items()}
    return None


def test_coefficients_are_those_of_the_installed_fa4():
    theirs = installed_coefficients()
    if theirs is None:
        pytest.skip("flash-attn-4 is not installed")
    assert theirs == POLY_EX2


def test_lanes_are_not_monotone_together():
    """Emulated and hardware lanes differ by up to 8.8e-5 at equal x; each alone stays within its own bound."""
    x = octave(0xBF800000)
    gap = np.abs(ex2_emulation_array(x).astype(np.float64) / mufu.ex2_array(x) - 1.0).max()
    assert 8.7e-5 < gap < 8.8e-5
