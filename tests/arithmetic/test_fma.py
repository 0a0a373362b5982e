"""Single fp32 operations against exact rational arithmetic, on operands chosen to break the usual shortcuts."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from fa4verify.arithmetic import fma as ops

RECORDING = Path(__file__).parents[1] / "golden" / "mufu_h200.json"
F32 = np.float32
MAX = Fraction(2**24 - 1) * 2**104
TINY = 2.0**-126 * (1 - 2.0**-25)  # below, 24 bits do not reach 2^-126
MAGIC = F32(2.0**23 + 2.0**22)


def floor_to_fp32(x: Fraction) -> Fraction:
    """Return the largest number of fp32's grid, exponent unbounded above, that is not above x."""
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent = exponent if Fraction(2) ** exponent <= size else exponent - 1
    spacing = Fraction(2) ** (max(exponent, -126) - 23)
    return (x / spacing).__floor__() * spacing


def nearest_fp32(x: Fraction) -> Fraction:
    """Round a nonzero number to fp32, half to even, exponent unbounded above."""
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    exponent = exponent if Fraction(2) ** exponent <= abs(x) else exponent - 1
    spacing = Fraction(2) ** (max(exponent, -126) - 23)
    return round(x / spacing) * spacing


def exact_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c rounded once, elementwise, for finite results that are not zero."""
    terms = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    return np.array([float(nearest_fp32(Fraction(x) * Fraction(y) + Fraction(z))) for x, y, z in terms], F32)


def through_float64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(F32)


def adversarial_triples(count: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a, b, c whose sum lies off the middle of two float32 by less than float64 can hold.

    a * b = 2^k (1 + e) with 0 < |e| < 2^-30 (b is the nearest float32 of 2^k / a, kept where it is close enough), and
    2^k is half an ulp of c. The float64 sum is exactly the middle; from there ties to even is right by luck only.
    """
    generator = np.random.Generator(np.random.Philox(key=1))
    a = generator.uniform(1.0, 2.0, 400_000).astype(F32)
    b = (1.0 / a.astype(np.float64)).astype(F32)
    error = a.astype(np.float64) * b.astype(np.float64) - 1.0
    close = (error != 0.0) & (np.abs(error) < 2.0**-30)
    a, b = a[close][:count], b[close][:count]
    c = generator.integers(2**23 + 1, 2**24 - 1, a.size).astype(F32) * np.where(generator.random(a.size) < 0.5, -1, 1)
    exponent = generator.integers(-60, 60, a.size)
    return a, np.ldexp(b, exponent - 1).astype(F32), np.ldexp(c, exponent).astype(F32)


def test_adversarial_set():
    a, b, c = adversarial_triples()
    assert a.size > 2000
    want = exact_fma(a, b, c)
    assert np.array_equal(ops.fma_array(a, b, c), want)
    wrong = np.mean(through_float64(a, b, c) != want)
    assert 0.45 < wrong < 0.55  # the shortcut is right by luck on half, so this set can tell


def test_structured_operands():
    """Products and addends over all distances of exponents, with all-ones, one-bit and near-cancelling significands."""
    significands = [1.0, 1 + 2.0**-23, 2 - 2.0**-23, 1.5, 1 + 2.0**-12, 4 / 3]
    exponents = [0, 1, 11, 12, 22, 23, 24, 25, 46, 47, 48, 49, 60, -1, -23, -24, -25, -48, -49]
    grid = np.array([(p, q, s * np.ldexp(r, e)) for p in significands for q in significands for r in significands
                     for e in exponents for s in (1, -1)])  # fmt: skip
    a, b, c = (np.ascontiguousarray(column).astype(F32) for column in grid.T)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in grid.tolist()]
    nonzero = np.array([value != 0 for value in exact])
    a, b, c = a[nonzero], b[nonzero], c[nonzero]
    assert np.array_equal(ops.fma_array(a, b, c), exact_fma(a, b, c))
    assert np.any(a * b + c != ops.fma_array(a, b, c))


def test_subnormal_results_round_once():
    """Sums of a product and a subnormal that lie beside the middle of two subnormals."""
    tiny = 2.0**-149
    a = np.full(6, 2.0**-75, F32)
    b = np.array([1, 1 + 2.0**-23, 1 - 2.0**-24, -1, -(1 + 2.0**-23), -(1 - 2.0**-24)], F32) * F32(2.0**-75)
    for c in (tiny, 2 * tiny, 3 * tiny, 2.0**-126, 2.0**-126 - tiny):
        addend = np.full(6, c, F32)
        assert np.array_equal(ops.fma_array(a, b, addend), exact_fma(a, b, addend))


SPECIAL_FMA = [
    (np.inf, 0.0, 1.0, np.nan),
    (np.inf, 2.0, -np.inf, np.nan),
    (np.inf, -1.0, 5.0, -np.inf),
    (np.nan, 0.0, 0.0, np.nan),
    (3e38, 2.0, -3e38, 3e38),  # the product alone would overflow
    (3e38, 2.0, 0.0, np.inf),
    (1.0, 1.0, -1.0, 0.0),
    (-1.0, 0.0, -0.0, -0.0),
    (1.0, 0.0, -0.0, 0.0),
]


@pytest.mark.parametrize(("a", "b", "c", "want"), SPECIAL_FMA)
def test_special_operands(a, b, c, want):
    got = ops.fma_array(F32(a), F32(b), F32(c))
    assert np.array_equal(got, F32(want), equal_nan=True)
    assert np.isnan(want) or np.signbit(got) == np.signbit(want)


@njit
def _multiply_then_add(a, b, c, out):
    for i in range(out.size):
        out[i] = a[i] * b[i] + c[i]


@njit
def _multiply_then_add_float64(a, b, c, out):
    for i in range(out.size):
        out[i] = a[i] * b[i] + c[i]


def test_numba_contracts_nothing():
    """A product and a sum keep two roundings in compiled code, scalar and vectorised, float32 and float64."""
    a, b, c = adversarial_triples()
    out = np.empty_like(a)
    _multiply_then_add(a, b, c, out)
    assert np.array_equal(out, a * b + c)
    assert np.any(out != ops.fma_array(a, b, c))
    x = 1.0 + np.arange(1, 65) * 2.0**-30
    wide = np.empty_like(x)
    _multiply_then_add_float64(x, x, -(x * x), wide)
    assert np.all(wide == 0.0)  # a contraction would leave the product's error


def exact_add_rm(a: float, b: float) -> float:
    total = Fraction(a) + Fraction(b)
    if total == 0:
        return 0.0 if np.signbit(a) == np.signbit(b) == np.False_ else -0.0
    floor = floor_to_fp32(total)
    if floor > MAX:
        return float(MAX)
    return float(floor) if floor >= -MAX else -np.inf


def finite_operands() -> np.ndarray:
    """Return float32 over all binades with significands at the edges, and the numbers of the exp2 reduction."""
    fractions = np.array([0, 1, 0x2AAAAB, 0x7FFFFF], np.uint32)
    fields = np.array([0, 1, 2, 3, 24, 25, 60, *range(100, 105), *range(125, 129), 133, 150, 151, 152, 252, 253, 254])
    positive = (fields.astype(np.uint32)[:, None] << 23 | fractions).ravel().view(F32)
    extra = np.array([0.5, 126.5, 127.0, 2.0**23, 2.0**22, float(MAGIC), 2.0**-25, 2.0**-26], F32)
    positive = np.concatenate([positive, extra])
    return np.concatenate([positive, -positive])


def test_add_toward_minus_infinity():
    operands = finite_operands()
    a, b = (side.ravel() for side in np.meshgrid(operands, operands))
    got = ops.add_rm_array(a, b)
    want = np.array([exact_add_rm(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], F32)
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))
    with np.errstate(over="ignore"):
        assert np.mean(a + b != want) > 0.05  # to nearest would be seen


def test_add_toward_minus_infinity_is_floor_beside_the_magic_number():
    x = np.concatenate([np.arange(-127.0, 128.0, 0.25), -np.geomspace(2.0**-149, 1.0, 400)]).astype(F32)
    assert np.array_equal(ops.add_rm_array(x, MAGIC).astype(np.float64) - float(MAGIC), np.floor(x))


def test_add_toward_minus_infinity_of_nonfinite():
    inf, nan = np.inf, np.nan
    pairs = np.array([(inf, 1), (inf, inf), (-inf, 1), (inf, -inf), (nan, 1), (1, nan), (-inf, -3e38)], F32)
    got = ops.add_rm_array(pairs[:, 0], pairs[:, 1])
    assert np.array_equal(got, np.array([inf, inf, -inf, nan, nan, nan, -inf], F32), equal_nan=True)


@njit
def _ftz_forms(a, b, c, out):
    for i in range(a.size):
        out[0, i] = ops.fma_ftz(a[i], b[i], c[i])
        out[1, i] = ops.mul_ftz(a[i], b[i])
        out[2, i] = ops.add_ftz(a[i], b[i])
        out[3, i] = ops.add_rm_ftz(a[i], b[i])
        out[4, i] = ops.flush(a[i])


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < F32(2.0**-126), np.copysign(F32(0), x), x)


def test_flush_to_zero():
    """Subnormal operands and results become zero of their sign; everything else is the plain operation."""
    operands = finite_operands()
    a, b = (side.ravel() for side in np.meshgrid(operands, operands))
    c = np.full_like(a, 2.0**-127)
    out = np.empty((5, a.size), F32)
    _ftz_forms(a, b, c, out)
    p, q = flushed(a), flushed(b)
    with np.errstate(over="ignore", under="ignore"):
        product = np.where(np.abs(p.astype(np.float64) * q) < TINY, np.copysign(F32(0), p * q), p * q)
        want = [product + F32(0), product, flushed(p + q), flushed(ops.add_rm_array(p, q)), p]
    for got, exact in zip(out, want, strict=True):
        assert np.array_equal(got, exact)
    for got, exact in zip(out[1:], want[1:], strict=True):
        assert np.array_equal(np.signbit(got), np.signbit(exact))
    assert np.any(ops.fma_array(a, b, c) != out[0])
    assert np.array_equal(ops.fma_array(a, b, c, ftz=True), out[0])
    assert np.array_equal(ops.add_rm_array(a, b, ftz=True), out[3])


def test_results_are_tiny_by_24_bits():
    """Beside 2^-126: a product, then sums whose float64 value sits on the limit and whose error says which side."""
    step, limit = 2.0**-149, 2.0**-126
    below = limit - step / 2  # (1 - 2^-24) * 2^-126
    cases = [
        (1 - 2.0**-24, limit, 0.0, 0.0),
        (-(1 - 2.0**-24), limit, 0.0, -0.0),
        ((1 + 2.0**-23) * 2.0**-63, (1 - 2.0**-23) * 2.0**-63, 0.0, limit),
        ((1 + 2.0**-23) * 2.0**-75, -(2.0**-76), limit, 0.0),  # the error of the float64 sum alone is below the limit
        ((1 - 2.0**-24) * 2.0**-75, -(2.0**-76), limit, limit),
        (2.0**-75, -(2.0**-76), limit, limit),  # exactly the limit: the tie goes to even
        (2.0**-75, -(2.0**-75), limit, 0.0),
    ]
    a, b, c, want = np.array(cases).T.astype(F32)
    got = ops.fma_array(a, b, c, ftz=True)
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))
    assert below == float(F32(1 - 2.0**-24)) * limit
    assert ops.fma_array(a[0], b[0], c[0]) == limit  # without ftz the tie is carried up


def test_arrays_take_float32_alone_and_broadcast():
    with pytest.raises(TypeError, match="float64"):
        ops.fma_array(np.ones(3), np.ones(3, F32), np.ones(3, F32))
    assert ops.fma_array(np.ones((2, 1), F32), np.ones(3, F32), F32(1)).shape == (2, 3)
    assert ops.add_rm_array(F32(1), F32(2)).shape == ()


def recorded_rows() -> list[dict[str, str]]:
    return json.loads(RECORDING.read_text()).get("round_and_flush", []) if RECORDING.exists() else []


@pytest.mark.skipif(not recorded_rows(), reason="the H200 recording holds no answers on rounding and flushing")
def test_the_device_agrees():
    rows = recorded_rows()
    a, b = (np.array([int(row[key], 16) for row in rows], np.uint32).view(F32) for key in "ab")
    out = np.empty((5, a.size), F32)
    _ftz_forms(a, b, np.zeros_like(a), out)
    out[4] = ops.add_rm_array(a, b)
    names = ("fma.rn.ftz", "mul.rn.ftz", "add.rn.ftz", "add.rm.ftz", "add.rm")
    for name, got in zip(names, out, strict=True):
        want = np.array([int(row[name], 16) for row in rows], np.uint32)
        same = (got.view(np.uint32) == want) | (np.isnan(got) & np.isnan(want.view(F32)))
        assert np.all(same), (name, [rows[i] for i in np.flatnonzero(~same)])
