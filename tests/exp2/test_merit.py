"""Figures over the fractions against exact rounding in fractions, the exhaustive pass over x, and figures to meet."""

from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp, workdps

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2 import measures
from fa4verify.exp2.merit import COUNT, fractions, hard_fractions, horner, merit
from fa4verify.exp2.remez import Shape
from fa4verify.exp2.sample import Sample
from fa4verify.exp2.sets import CoefficientSet, parse, shipped
from fa4verify.exp2.statistics import collect, everything
from fa4verify.exp2.statistics import fractions as every_fraction
from fa4verify.exp2.targets import OBJECTIVES
from tests.exp2.oracle import nearest

DROP_IN = parse("0x1.00002cp+0,0x1.62d13ap-1,0x1.ee7b9cp-3,0x1.aa115ap-5,0x1.bb6f60p-7").coefficients


@pytest.mark.parametrize("degree", [2, 5])
def test_horner_is_the_exact_fma_rounded_once(degree):
    rng = np.random.default_rng(degree)
    k = np.concatenate([[0, 1, 2**23, 2**24 - 1, 2**24], rng.integers(0, 2**24, 200)])
    f = (k / 2**24).astype(np.float32)
    out = np.empty(f.size, np.float32)
    horner(f, np.array(POLY_EX2[degree], np.float32), out)
    for value, got in zip(f, out, strict=True):
        p = Fraction(POLY_EX2[degree][-1])
        for c in POLY_EX2[degree][-2::-1]:
            p = nearest(p * Fraction(float(value)) + Fraction(c), 24, -126)
        assert p == Fraction(float(got))


def test_figures_are_those_that_independent_code_gave():
    """Degree 3: an experiment's figures on the same fractions; degree 5 over all x; a set published as drop-in."""
    three, five, drop, four = merit(POLY_EX2[3]), merit(POLY_EX2[5]), merit(DROP_IN), merit(POLY_EX2[4])
    assert three.max == pytest.approx(8.7688e-5, rel=1e-5)
    assert three.rms == pytest.approx(6.0286e-5, rel=1e-5)
    assert three.bias == pytest.approx(8.2368e-6, rel=1e-4)
    assert three.bf16 == pytest.approx(0.00997, abs=1e-5)
    assert three.fp16 == pytest.approx(0.0797, abs=1e-4)
    assert five.max == pytest.approx(1.5567e-7, rel=1e-4)
    assert merit(POLY_EX2[5], over_x=False).max == pytest.approx(1.4432e-7, rel=1e-4)
    ratios = [drop.objective(name) / four.objective(name) for name in ("max", "rms", "bf16", "fp16")]
    assert ratios == pytest.approx([0.893, 0.885, 0.887, 0.887], abs=5e-4)


@pytest.mark.parametrize(
    "chosen", [shipped(5), CoefficientSet("nearest", POLY_EX2[4], "nearest")], ids=lambda c: c.name
)
def test_the_exhaustive_pass_over_x_agrees(chosen):
    """Largest over every x in [-126, 0): the fractions' allowance is first order, off by (1e-7)^2."""
    figures = collect(everything(-126, 0), chosen)
    largest = max(-figures.low.min(), figures.high.max())
    mine = merit(chosen.float32, floor=chosen.range_reduction == "floor").max
    if chosen.range_reduction == "floor":
        assert mine == pytest.approx(largest, rel=1e-7)
    else:  # negative fractions are finer near 0 than k/2^24
        assert mine <= largest * (1 + 1e-9)
        assert largest <= mine + 2.0**-24


def test_shares_and_moments_are_those_of_every_fraction_once():
    figures = collect(every_fraction(), shipped(4))
    assert figures.count.sum() == 2**24
    mine = merit(POLY_EX2[4])
    # k = 1 ... 2^24 there, f = 1 - k/2^24: without f = 1 itself, whose error is known and counted here.
    end = float(np.float32(sum(POLY_EX2[4])) / 2 - 1)
    assert mine.bias * COUNT - figures.total.sum() == pytest.approx(end, abs=1e-7)
    assert mine.rms**2 * COUNT - figures.square.sum() == pytest.approx(end**2, abs=1e-9)
    for column, name in enumerate(("bf16", "fp16", "e4m3")):
        assert 0 <= round(getattr(mine, name) * COUNT) - figures.mismatches[:, column].sum() <= 1
    assert measures.FORMATS


@pytest.mark.parametrize("reduction", ["floor", "nearest"])
def test_a_sample_counts_shares_exactly_and_finds_the_largest_once_it_knows_where(reduction):
    rng = np.random.default_rng(3)
    floor = reduction == "floor"
    shape = Shape(4, "free", False, reduction)
    real = np.array(POLY_EX2[4])
    if not floor:
        from fa4verify.exp2.remez import minimax

        real = np.array([float(c) for c in minimax(shape).coefficients])
    sample = Sample(shape)
    sample.aim(real, 3e-6, ("bf16", "fp16", "e4m3"))
    for _ in range(3):
        c = (real * (1 + 2e-7 * rng.normal(size=5))).astype(np.float32)
        sample.add_hard(c, 300)
        got = sample.measure(c[None], OBJECTIVES)[0]
        true = merit(c, floor=floor)
        # At the two fractions that x approaches from one side only the sample allows nothing; else it is the maximum.
        assert got[0] == pytest.approx(true.max, rel=1e-9)
        assert got[1] == pytest.approx(true.rms, rel=2e-2)
        for column, name in enumerate(("bf16", "fp16", "e4m3")):
            assert round(got[3 + column] * COUNT) == round(getattr(true, name) * COUNT), name


def test_errors_beyond_a_window_are_infinite_not_miscounted():
    sample = Sample(Shape(4))
    sample.aim(np.array(POLY_EX2[4]), 1e-6, ("bf16",))
    worse = np.array([POLY_EX2[3] + (0.0,)], np.float32)
    assert np.isinf(sample.measure(worse, ("bf16",))).all()


def test_limits_cut_off_and_nothing_else():
    sample = Sample(Shape(4))
    sample.aim(np.array(POLY_EX2[4]), 1e-6, ("bf16",))
    two = np.array([POLY_EX2[4], DROP_IN], np.float32)
    free = sample.measure(two, ("max", "rms", "bf16"))
    assert np.isfinite(free).all()
    between = dict(zip(OBJECTIVES, free.mean(axis=0), strict=True))
    for name in ("max", "rms", "bf16"):
        cut = sample.measure(two, ("max", "rms", "bf16"), {name: between[name]})
        assert np.isinf(cut[0]).all(), name
        assert np.array_equal(cut[1], free[1]), name


def test_allowances_are_the_extremes_of_every_x_that_shares_a_fraction():
    """By brute force: the x around -1 + k/2^24 that round to it, from both neighbours' midpoints."""
    rng = np.random.default_rng(8)
    edges = [2**23 + 1, 2**23 + 2, 2**23 + 2**22, 2**23 + 2**22 + 1, 2**24 - 1, 2**24 - 2, 2**24 - 4096, 2**24 - 4095]
    k = np.array(edges + list(rng.integers(2**23 + 1, 2**24, 30)))
    _, _, allowance = fractions(k, True)
    for each, allowed in zip(k, allowance, strict=True):
        exact = Fraction(int(each), 2**24) - 1
        x = np.float32(float(exact))
        reach = [Fraction(0)]
        for direction in (np.float32(-1.0), np.float32(0.0)):
            low, high = 0, 2**22
            bits = int(x.view(np.uint32))
            step = 1 if direction < 0 else -1
            while low < high:  # bisection: how many floats away still share the fraction
                middle = (low + high + 1) // 2
                other = np.uint32(bits + step * middle).view(np.float32)
                shares = np.float32(other + np.float32(1.0)) == np.float32(float(exact + 1)) and -0.5 < other < 0
                low, high = (middle, high) if shares else (low, middle - 1)
            reach.append(abs(Fraction(float(np.uint32(bits + step * low).view(np.float32))) - exact))
        with workdps(30):
            assert allowed == pytest.approx(float(max(reach)) * float(mp.log(2)), rel=1e-6, abs=1e-20), each


def test_hard_fractions_hold_the_worst():
    k = hard_fractions(POLY_EX2[5], 50)
    f, inverse, allowance = fractions(k, True)
    out = np.empty(f.size, np.float32)
    horner(f, np.array(POLY_EX2[5], np.float32), out)
    error = np.abs(out * inverse - 1) + allowance
    assert error[0] == pytest.approx(merit(POLY_EX2[5]).max, rel=1e-9)
    assert (np.diff(error) <= 0).all()
