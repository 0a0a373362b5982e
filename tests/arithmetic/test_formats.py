"""Formats: one rounding, to nearest even, held against lists of all codes built from the definition."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from fa4verify.arithmetic import formats
from fa4verify.arithmetic.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32

# Exponent bits, fraction bits, infinities: the definitions, written down a second time.
LAYOUT = {"bf16": (8, 7, True), "fp16": (5, 10, True), "e4m3": (4, 3, False), "e5m2": (5, 2, True)}
SMALL = [FORMATS[name] for name in LAYOUT]
PEERS = {
    "bf16": (ml_dtypes.bfloat16, torch.bfloat16),
    "fp16": (np.float16, torch.float16),
    "e4m3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    "e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2),
}


@lru_cache
def finite_values(name: str) -> list[Fraction]:
    """Return every finite value from +0 up, in order of its code, then the value that one more code would have."""
    exponent_bits, fraction_bits, infinities = LAYOUT[name]
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for field in range(2**exponent_bits):
        for fraction in range(2**fraction_bits):
            significand = Fraction(fraction, 2**fraction_bits) + (field > 0)
            values.append(significand * Fraction(2) ** (max(field, 1) - bias))
    finite = 2 ** (exponent_bits + fraction_bits) - (2**fraction_bits if infinities else 1)
    return values[: finite + 1]


@lru_cache
def structured_points(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return points and their nearest values (ties to the even code, the value past the last for overflow).

    Every value, every midpoint of two neighbours, and both a float64 ulp to either side.
    """
    values = np.array([float(value) for value in finite_values(name)])
    below, above = values[:-1], values[1:]
    middle = (below + above) / 2  # exact: one bit more than the format
    even = np.where(np.arange(below.size) % 2 == 0, below, above)
    points = [below, np.nextafter(below, np.inf), np.nextafter(above, 0.0)]
    nearest = [below, below, above]
    points += [np.nextafter(middle, 0.0), middle, np.nextafter(middle, np.inf)]
    nearest += [below, even, above]
    x, y = np.concatenate(points), np.concatenate(nearest)
    return np.concatenate([x, -x]), np.concatenate([y, -y])


def expected(name: str, nearest: np.ndarray, saturate: bool) -> np.ndarray:
    fmt = FORMATS[name]
    overflow = fmt.max_finite if saturate else np.inf if LAYOUT[name][2] else np.nan
    return np.where(np.abs(nearest) > fmt.max_finite, np.copysign(overflow, nearest), nearest)


def count_differences(got: np.ndarray, want: np.ndarray) -> int:
    """Count elements that differ, in value, in the sign of a zero, or in being NaN."""
    same = (got == want) & (np.signbit(got) == np.signbit(want))
    return int(np.sum(~(same | (np.isnan(got) & np.isnan(want)))))


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_every_code_and_every_midpoint(fmt, saturate):
    x, nearest = structured_points(fmt.name)
    got = formats.round_to(x, fmt, saturate=saturate)
    assert count_differences(got, expected(fmt.name, nearest, saturate)) == 0


def through_float32(x: np.ndarray, fmt: formats.Format) -> np.ndarray:
    with np.errstate(over="ignore"):
        return formats.round_to(x.astype(np.float32), fmt)


def toward_zero(x: np.ndarray, fmt: formats.Format) -> np.ndarray:
    spacing = formats.ulp(x, fmt)
    return np.trunc(x / spacing) * spacing


def ties_away(x: np.ndarray, fmt: formats.Format) -> np.ndarray:
    spacing = formats.ulp(x, fmt)
    return np.copysign(np.floor(np.abs(x) / spacing + 0.5) * spacing, x)


@pytest.mark.parametrize("wrong", [through_float32, toward_zero, ties_away])
@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_wrong_roundings_are_seen(fmt, wrong):
    x, nearest = structured_points(fmt.name)
    inside = np.abs(nearest) <= fmt.max_finite
    differences = count_differences(wrong(x[inside], fmt), nearest[inside])
    # Each midpoint has one neighbour that float32 loses, half of the midpoints have an odd value below them.
    assert differences > x.size // 15


def test_the_documented_double_rounding():
    x = 1 + 2.0**-11 + 2.0**-40
    assert formats.round_to(x, FP16) == 1 + 2.0**-10
    assert through_float32(np.array(x), FP16) == 1.0


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_overflow_threshold(fmt):
    """The last value that still rounds to the largest finite one lies just below half a step above it."""
    step = float(formats.ulp(fmt.max_finite, fmt))
    tie = fmt.max_finite + step / 2
    goes_up = fmt is not E4M3  # 448 has an even code: the tie stays; elsewhere the largest code is odd
    below, above = np.nextafter(tie, 0.0), np.nextafter(tie, np.inf)
    got = formats.round_to(np.array([below, tie, above, 1e308]), fmt)
    overflow = np.inf if fmt.has_infinity else np.nan
    want = [fmt.max_finite, overflow if goes_up else fmt.max_finite, overflow, overflow]
    assert count_differences(got, np.array(want)) == 0
    assert np.all(formats.round_to(np.array([above, 1e308, np.inf]), fmt, saturate=True) == fmt.max_finite)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_special_values(fmt):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 5e-324, -5e-324, 1e-300])
    inf = np.inf if fmt.has_infinity else np.nan
    want = np.array([0.0, -0.0, inf, -inf, np.nan, np.nan, 0.0, -0.0, 0.0])
    assert count_differences(formats.round_to(x, fmt), want) == 0
    most = fmt.max_finite
    want = np.array([0.0, -0.0, most, -most, np.nan, np.nan, 0.0, -0.0, 0.0])
    assert count_differences(formats.round_to(x, fmt, saturate=True), want) == 0
    # NaN with a payload in the low bits alone, whose carry could turn it into something else
    patterns = np.array([0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF], np.uint64)
    assert np.all(np.isnan(formats.round_to(patterns.view(np.float64), fmt)))


def nearest_fp32(x: Fraction) -> Fraction:
    """Round a positive number to fp32 by the definition, exponent unbounded above."""
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent = exponent if Fraction(2) ** exponent <= x else exponent - 1
    spacing = Fraction(2) ** (max(exponent, -126) - 23)
    return round(x / spacing) * spacing  # Python's round of a Fraction is half to even


@given(st.floats(min_value=2.0**-151, max_value=2.0**127, allow_nan=False))
def test_fp32_by_the_definition(x):
    assert Fraction(float(formats.round_to(x, FP32))) == nearest_fp32(Fraction(x))


def test_fp32_midpoints_over_all_binades():
    fractions = np.array([0, 1, 2, 3, 0x2AAAAA, 0x555555, 0x400000, 0x7FFFFD, 0x7FFFFE, 0x7FFFFF], np.uint32)
    codes = (np.arange(255, dtype=np.uint32)[:, None] << 23 | fractions).ravel()[:-1]
    below, above = codes.view(np.float32).astype(np.float64), (codes + 1).view(np.float32).astype(np.float64)
    middle = (below + above) / 2
    even = np.where(codes % 2 == 0, below, above)
    assert np.array_equal(formats.round_to(middle, FP32), even)
    assert np.array_equal(formats.round_to(np.nextafter(middle, 0.0), FP32), below)
    assert np.array_equal(formats.round_to(np.nextafter(middle, np.inf), FP32), above)


@njit
def _scalars(x, bf16, fp16, e4m3, e5m2, saturate):
    for i in range(x.size):
        bf16[i] = formats.round_bf16(x[i])
        fp16[i] = formats.round_fp16(x[i])
        e4m3[i] = formats.round_e4m3(x[i], saturate)
        e5m2[i] = formats.round_e5m2(x[i], saturate)


@lru_cache
def float32_points() -> np.ndarray:
    """Return every float32 whose low half is one of the nine patterns that decide a rounding to bf16; midpoints too."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1000, 0x0FFF, 0x1001], np.uint32)
    codes = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | low).ravel()
    extra = []
    for name in ("fp16", "e4m3", "e5m2"):
        values = np.array([float(value) for value in finite_values(name)])
        middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)  # exact
        extra += [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    points = np.concatenate([codes.view(np.float32), *extra])
    return np.concatenate([points, -points])


@pytest.mark.parametrize("saturate", [False, True])
def test_scalars_of_the_kernels(saturate):
    """The float32 specialisations equal the float64 routine, and torch where torch rounds to nearest."""
    x = float32_points()
    results = [np.empty_like(x) for _ in SMALL]
    _scalars(x, *results, saturate)
    for fmt, got in zip(SMALL, results, strict=True):
        clamp = saturate and fmt in (E4M3, E5M2)
        assert count_differences(got, formats.round_to(x, fmt, saturate=clamp).astype(np.float32)) == 0, fmt.name
        if fmt in (BF16, FP16):
            peer = torch.from_numpy(x).to(PEERS[fmt.name][1]).float().numpy()
            assert count_differences(got, peer) == 0, fmt.name


def test_scalars_do_not_depend_on_the_flush_mode():
    x = float32_points()
    plain, flushing = ([np.empty_like(x) for _ in SMALL] for _ in range(2))
    _scalars(x, *plain, False)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        lost = x[:4].copy() * np.float32(1.0)  # the mode is on: subnormals are gone
        _scalars(x, *flushing, False)
    finally:
        torch.set_flush_denormal(False)
    assert lost[1] == 0 != x[1]
    for fmt, got, want in zip(SMALL, flushing, plain, strict=True):
        assert count_differences(got, want) == 0, fmt.name


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_ml_dtypes_agrees_on_float32(fmt):
    x = float32_points()
    with np.errstate(over="ignore", invalid="ignore"):
        peer = x.astype(PEERS[fmt.name][0]).astype(np.float64)
    assert count_differences(formats.round_to(x, fmt), peer) == 0


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_codes_round_trip_and_mean_what_others_mean(fmt):
    codes = np.arange(2**fmt.width, dtype=f"u{fmt.width // 8}")
    values = formats.decode(codes, fmt)
    with np.errstate(invalid="ignore"):
        peer = codes.view(PEERS[fmt.name][0]).astype(np.float64)
    signed = torch.from_numpy(codes.view(f"i{fmt.width // 8}"))
    assert count_differences(values, peer) == 0
    assert count_differences(values, signed.view(PEERS[fmt.name][1]).double().numpy()) == 0
    back = formats.encode(values, fmt)
    assert back.dtype == codes.dtype
    nan = np.isnan(values)
    assert np.array_equal(back[~nan], codes[~nan])
    assert np.all(back[nan] == 2 ** (fmt.width - 1) - 1)


def test_fp32_codes_are_numpys():
    codes = (np.arange(2**17, dtype=np.uint32) * np.uint32(32769)).astype(np.uint32)
    values = codes.view(np.float32)
    finite = ~np.isnan(values)
    assert count_differences(formats.decode(codes, FP32)[finite], values[finite].astype(np.float64)) == 0
    assert np.array_equal(formats.encode(values[finite], FP32), codes[finite])


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_limits_and_ulp_come_from_the_list_of_values(fmt):
    values = [float(value) for value in finite_values(fmt.name)]
    assert fmt.max_finite == values[-2]
    assert fmt.min_subnormal == values[1]
    assert fmt.min_normal == values[2 ** (fmt.precision - 1)]
    assert fmt.unit_roundoff == (values[values.index(1.0) + 1] - 1) / 2
    assert np.array_equal(formats.ulp(values[:-1], fmt), np.diff(values))
    assert np.array_equal(np.isnan(formats.ulp([np.inf, -np.inf, np.nan], fmt)), [True] * 3)
    assert formats.ulp(1e300, fmt) == np.diff(values)[-1]


def test_only_floats_are_taken():
    with pytest.raises(TypeError, match="int64"):
        formats.round_to(np.array([1, 2]), BF16)
    assert formats.round_to(np.float32(1.00390625), BF16).shape == ()
    assert formats.round_to(np.ones((2, 3, 0)), E5M2).shape == (2, 3, 0)
    columns = np.arange(12.0).reshape(3, 4).T / 7
    assert np.array_equal(formats.round_to(columns, FP16), formats.round_to(columns.copy(), FP16))


@njit(cache=True)
def _codes(x, e4m3, e5m2):
    for i in range(x.size):
        e4m3[i] = formats.code_e4m3(x[i])
        e5m2[i] = formats.code_e5m2(x[i])


def _codes_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = np.empty(x.size, np.uint32), np.empty(x.size, np.uint32)
    _codes(x, *found)
    return found


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_codes_of_every_number_of_16_bits_are_torchs_after_clamping(name):
    """All fp16 and all bf16 numbers; torch has no satfinite, so that it is given the clamped number."""
    everything = np.arange(1 << 16, dtype=np.uint16)
    halves = everything.view(np.float16).astype(np.float32)
    bf16s = (everything.astype(np.uint32) << np.uint32(16)).view(np.float32)
    x = np.concatenate([halves, bf16s])
    got = _codes_of(x)[0 if name == "e4m3" else 1]
    largest = np.float32(FORMATS[name].max_finite)
    peer = torch.from_numpy(np.clip(x, -largest, largest)).to(PEERS[name][1]).view(torch.uint8).numpy()
    peer = np.where(np.isnan(x), 0x7F, peer)
    assert np.array_equal(got, peer)
    assert np.array_equal(got, formats.encode(x, FORMATS[name], saturate=True))
    # Between two codes the 16-bit numbers are dense enough to hold every midpoint; their float32 neighbours too.
    middle = structured_points(name)[0].astype(np.float32)
    around = np.concatenate([middle, np.nextafter(middle, np.float32(9e9)), np.nextafter(middle, np.float32(-9e9))])
    got = _codes_of(around)[0 if name == "e4m3" else 1]
    assert np.array_equal(got, formats.encode(around, FORMATS[name], saturate=True))
    peer = np.clip(around, -largest, largest).astype(PEERS[name][0]).view(np.uint8)
    assert np.array_equal(got, peer)
