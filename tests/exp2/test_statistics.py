"""Every figure against mpmath, flint and NumPy, on random and adversarial inputs, and against each other."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, fmpq

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.arithmetic.formats import round_to
from fa4verify.exp2.evaluate import evaluate, evaluate_bits
from fa4verify.exp2.sets import CoefficientSet, shipped
from fa4verify.exp2.statistics import BINS, CHUNK, EDGES, FORMATS, Piece, collect, everything, fractions
from tests.exp2.oracle import INFINITY, ball, number, power, to_format, ulp_of
from tests.exp2.test_evaluate import ODD, TAYLOR, rounded

F32 = np.float32
NEAREST = CoefficientSet("nearest", POLY_EX2[4], "nearest")
SETS = [
    *(shipped(degree) for degree in range(6)), CoefficientSet("7", TAYLOR), NEAREST,
    CoefficientSet("6, nearest", TAYLOR[:7], "nearest"),
    *(CoefficientSet(name, rounded(values)) for name, values in ODD.items()),
]  # fmt: skip


def code_of(x):
    return int(F32(x).view(np.uint32))


# Random places, and where something changes: 1, integers, binades, the ends, subnormals, the steps of the formats.
generator = np.random.Generator(np.random.Philox(key=11))
PLACES = [
    *(0x80000001 + int(n) for n in generator.integers(0x33000000, 0x42FD0000, 6)),
    *(int(n) for n in generator.integers(0x33000000, 0x42FF0000, 6)),
    0x80000001, code_of(-1.0) + 1, code_of(-0.5) + 1, code_of(-126) + 1, code_of(-127) - 39, code_of(-3) - 39,
    code_of(-(2.0**-25)) - 39, code_of(-(2.0**-25)) + 1, 0, code_of(1.0), code_of(2.0) - 40, code_of(127.5),
    code_of(8.0),
]  # fmt: skip
SLACK = Fraction(1, 2**26)  # how far an error in ulp may be off
COUNT = 40  # two vectors and eight inputs one by one


def by_definition(piece, chosen):
    """Every figure of a piece in exact arithmetic, mpmath's powers apart."""
    codes = [piece.first + i * piece.stride for i in range(piece.count)]
    x = np.array(codes, np.uint32).view(F32)
    y = evaluate(x, chosen.coefficients, chosen.range_reduction)
    before = max(piece.first - piece.stride, 0 if piece.first < 2**31 else 2**31)
    all_y = np.append(evaluate(F32(number(before)), chosen.coefficients, chosen.range_reduction), y)
    errors, ulps, mismatches = [], [], np.zeros(3, int)
    for value, result in zip(x.tolist(), y.tolist(), strict=True):
        exact = power(value)
        for f, fmt in enumerate(FORMATS):
            if math.isnan(result) or math.copysign(1, result) < 0:
                mismatches[f] += 1
            else:
                got = INFINITY[fmt.name] if math.isinf(result) else to_format(Fraction(result), fmt.name)
                mismatches[f] += got != to_format(exact, fmt.name)
        if math.isfinite(result):
            errors.append(Fraction(result) / exact - 1)
            ulps.append((Fraction(result) - exact) / ulp_of(exact))
    rising = all_y if piece.first < 2**31 else all_y[::-1]
    down = int(np.sum(~(rising[1:] >= rising[:-1])))
    return errors, ulps, mismatches, down


@pytest.mark.parametrize("chosen", SETS, ids=lambda chosen: chosen.name)
def test_every_figure_by_mpmath(chosen):
    """Sums of 40 errors, each good to 5.7e-16 and itself an fp32 rounding away from a rational function of x."""
    for place in PLACES:
        piece = Piece(place, COUNT)
        found = collect([piece], chosen, threads=1)
        errors, ulps, mismatches, down = by_definition(piece, chosen)
        assert (found.down[0], found.nonfinite[0]) == (down, COUNT - len(errors)), hex(place)
        assert np.array_equal(found.mismatches[0], mismatches), hex(place)
        placed = np.cumsum(found.histogram[0][::-1])[::-1]  # from each bin on
        assert placed[0] == len(ulps)
        for edge, count in zip(EDGES.tolist(), placed[1:], strict=True):
            least, most = (sum(each >= Fraction(edge) + slack for each in ulps) for slack in (SLACK, -SLACK))
            assert least <= count <= most, (hex(place), edge)
        if errors:
            close = {"rel": 1e-14, "abs": COUNT * 5.7e-16}
            assert found.total[0] == pytest.approx(float(sum(errors)), **close)
            shift = 2 * 5.7e-16 * float(sum(map(abs, errors)))
            assert found.square[0] == pytest.approx(float(sum(e * e for e in errors)), rel=1e-14, abs=shift + 1e-29)
            assert found.low[0] == pytest.approx(float(min(errors)), rel=1e-15, abs=5.7e-16)
            assert found.high[0] == pytest.approx(float(max(errors)), rel=1e-15, abs=5.7e-16)


def test_bound_of_the_reference_by_flint():
    """Extremes of 1000 vectors of 16 inputs: 5.1 * 2^-53 beside balls of 200 bits; the bound is not vacuous."""
    chosen, largest = shipped(5), 0.0
    draw = np.random.Generator(np.random.Philox(key=13))
    for place in draw.integers(0x2F000000, 0x42FB0000, 1000).tolist():
        first = (place & ~15) + 2**31 + 1
        found = collect([Piece(first, 16)], chosen, threads=1)
        y = evaluate_bits(first, 16, chosen.coefficients)
        exact = [fmpq(*float(value).as_integer_ratio()) / ball(number(first + i)) - 1 for i, value in enumerate(y)]
        high = max(exact, key=lambda each: float(each.mid()))
        largest = max(largest, abs(float((arb(float(found.high[0])) - high).mid())))
    assert 2.0**-54 < largest < 5.1 * 2.0**-53


def by_numpy(first, chosen):
    """Return a chunk's figures from NumPy's float64 exp2 and the formats' own rounding."""
    codes = np.arange(first, first + CHUNK, dtype=np.uint32)
    x = codes.view(F32).astype(np.float64)
    y = evaluate_bits(first, CHUNK, chosen.coefficients, chosen.range_reduction)
    exact = np.exp2(x)
    error = y / exact - 1
    mismatches = [
        int(
            np.sum(
                round_to(y, fmt, saturate=not fmt.has_infinity) != round_to(exact, fmt, saturate=not fmt.has_infinity)
            )
        )
        for fmt in FORMATS
    ]
    spacing = np.exp2(np.maximum(np.floor(x), -126) - 23)
    histogram = np.bincount(np.searchsorted(EDGES, (y - exact) / spacing, side="right"), minlength=BINS)
    steps = np.diff(y) * (-1 if first >= 2**31 else 1)
    return error, mismatches, histogram, int(np.sum(~(steps >= 0)))


@pytest.mark.parametrize("chosen", [shipped(2), shipped(3), shipped(5), NEAREST], ids=lambda chosen: chosen.name)
def test_whole_chunks_by_numpy(chosen):
    """One chunk of every binade from 2^-26 on, of both signs: 64 full blocks, which the small pieces never fill."""
    draw = np.random.Generator(np.random.Philox(key=17))
    for exponent in range(101, 133):
        for sign in (0, 2**31 + 1):
            first = sign + (exponent << 23) + CHUNK * int(draw.integers(0, 252))
            found = collect([Piece(first, CHUNK)], chosen, threads=1)
            error, mismatches, histogram, down = by_numpy(first, chosen)
            assert found.mismatches[0].tolist() == mismatches
            assert abs(found.histogram[0] - histogram).sum() <= 4  # NumPy errs by 1.5e-8 ulp, here and there at an edge
            assert found.down[0] - down in (0, 1)  # the step into the chunk is counted as well
            assert found.total[0] == pytest.approx(error.sum(), rel=1e-12, abs=CHUNK * 1e-15)
            assert found.square[0] == pytest.approx((error**2).sum(), rel=1e-6)
            assert (found.low[0], found.high[0]) == pytest.approx((error.min(), error.max()), abs=1.5e-15)


@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("step", [-1, 1])
def test_one_ulp_in_one_coefficient_is_seen(k, step):
    """In the mean, the RMSE, the mismatches and the histogram: the shipped set can be told from its neighbours."""
    values = list(POLY_EX2[3])
    values[k] = float(np.nextafter(F32(values[k]), F32(step * 10)))
    mutant, original = (collect(fractions(), chosen) for chosen in (CoefficientSet("m", tuple(values)), shipped(3)))
    n = 2**24
    assert abs(mutant.total.sum() - original.total.sum()) / n > 1e-9
    assert abs(math.sqrt(mutant.square.sum() / n) / math.sqrt(original.square.sum() / n) - 1) > 1e-6
    assert not np.array_equal(mutant.mismatches.sum(axis=0), original.mismatches.sum(axis=0))
    assert not np.array_equal(mutant.histogram.sum(axis=0), original.histogram.sum(axis=0))


def test_threads_change_no_bit():
    one, two = (collect(everything(-16, -1), shipped(4), threads=threads) for threads in (1, 3))
    for field in dataclasses.fields(one):
        assert np.array_equal(getattr(one, field.name), getattr(two, field.name)), field.name


def test_fractions_are_each_k_once():
    codes = [piece.first + piece.stride * np.arange(piece.count) for piece in fractions()]
    x = np.concatenate(codes).astype(np.uint32).view(F32).astype(np.float64)
    assert np.array_equal(np.sort(-x * 2**24), np.arange(1, 2**24 + 1))


def test_everything_is_every_float_once():
    assert sum(piece.count for piece in everything()) == 0x42FE0000 + 0x43000000
    (negative,) = everything(-5, -2)
    assert (number(negative.first), number(negative.first + negative.count - 1)) == (np.nextafter(F32(-2), F32(-9)), -5)
    below, above = everything(-1, 2)
    assert (number(below.first), number(below.first + below.count - 1)) == (-(2.0**-149), -1)
    assert (number(above.first), number(above.first + above.count)) == (0, 2)


def test_nan_results_are_set_apart():
    """p0 < 1 at -127 borrows from the exponent; all other figures are those of the inputs that are left."""
    chosen = CoefficientSet("below one", rounded((0.999, 0.695, 0.2276, 0.0771)))
    last = Piece(code_of(-127) - CHUNK + 1, CHUNK)
    found = collect([last], chosen)
    y = evaluate_bits(last.first, CHUNK, chosen.coefficients)
    assert found.nonfinite[0] == np.sum(~np.isfinite(y)) > 0
    assert found.histogram[0].sum() == CHUNK - found.nonfinite[0]
    assert np.isfinite([found.total[0], found.square[0], found.low[0], found.high[0]]).all()


BAD_PIECES = [
    *(Piece(code_of(edge) - 20, 40) for edge in (-0.5, 0.5, -3, 5)),
    *(Piece(code_of(-127) + 1, 1), Piece(code_of(128), 1), Piece(code_of(-0.0), 20), Piece(5, 0), Piece(5, 5, 0)),
]


@pytest.mark.parametrize("piece", BAD_PIECES, ids=str)
def test_pieces_that_are_not_evenly_spaced_or_out_of_range(piece):
    """Across a binade or an integer 2^x is no geometric progression in one octave."""
    with pytest.raises(ValueError, match="Piece"):
        collect([piece], shipped(3))


def test_progress_counts_every_input():
    seen = []
    collect(everything(-16, -1), shipped(1), progress=seen.append)
    assert sum(seen) == sum(piece.count for piece in everything(-16, -1))
