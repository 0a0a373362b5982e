"""Balls: they enclose mpmath's values, the radius notices an error of fp64, and exact sums are exact."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from flint import arb

from fa4verify.references import ball, fp64
from fa4verify.references.problem import Problem

from .problems import FEATURES, by_mpmath, draw, name, problem, score_size


def encloses(exact, value):
    """Say whether an mpf good to 45 digits lies in the ball, widened by those 45 digits."""
    if not isinstance(exact, arb):
        return exact == value
    with mpmath.workdps(60):
        mantissa, exponent = (int(x) for x in exact.mid().man_exp())
        slack = mpmath.mpf(10) ** -44 * (1 + abs(value))
        radius = mpmath.mpf(float(exact.rad())) * (1 + mpmath.mpf(2) ** -50)
        return abs(mpmath.ldexp(mantissa, exponent) - value) <= radius + slack


@pytest.mark.parametrize("features", FEATURES[::3], ids=name)
def test_encloses_mpmath(features):
    read = problem(**features)
    o, lse = by_mpmath(**features)
    for (b, h, i), expected in lse.items():
        exact_o, exact_lse = ball.row(read, b, h, i)
        assert encloses(exact_lse, expected)
        assert all(encloses(x, y) for x, y in zip(exact_o, o[b, h, i], strict=bool(read.k.shape[1])))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("spread", [1e-3, 40.0])
def test_is_sharp_for_flat_and_for_peaked_rows(dtype, spread):
    features = {"lengths": (2, 25), "dims": (8, 3), "spread": spread, "dtype": dtype}
    read = problem(**features)
    o, lse = by_mpmath(**features)
    for (b, h, i), expected in lse.items():
        exact_o, exact_lse = ball.row(read, b, h, i)
        assert encloses(exact_lse, expected)
        assert all(encloses(x, y) for x, y in zip(exact_o, o[b, h, i], strict=True))
        assert float(exact_lse.rad()) < 2.0**-60 * (1 + spread * spread)
        assert max(float(x.rad()) for x in exact_o) < 2.0**-60 * (spread + spread**3)


def test_a_ball_of_the_wrong_mask_does_not_enclose():
    o, lse = by_mpmath(lengths=(5, 5), causal=True)
    exact_o, exact_lse = ball.row(problem(lengths=(5, 5)), 0, 0, 2)
    assert not encloses(exact_lse, lse[0, 0, 2])
    assert not any(encloses(x, y) for x, y in zip(exact_o, o[0, 0, 2], strict=True))


@pytest.mark.parametrize("features", [{}, {"causal": True}, {"window_size": (200, 0)}, {"softcap": 10.0}], ids=name)
def test_certifies_fp64_below_its_bound_at_real_sizes(features):
    """Rows on both sides of fp64's own tile edges too: 256 queries, 512 keys."""
    features = {"lengths": (600, 600), "dims": (64, 64), "spread": 1.0, "learnable_sink": True, **features}
    read = problem(**features)
    result = fp64.forward(read)
    certificate = ball.certify(read, result, seed="some case")
    largest = float(draw(**features).tensors["v"].abs().max())
    bound = fp64.error_bound(read, score_size(draw(**features), read.scale))
    assert 0 < certificate.radius["o"] <= bound * largest
    assert 0 < certificate.radius["lse"] <= bound + 100 * 2.0**-53
    for i in (255, 256, 511, 512, 599):
        o, lse = ball.row(read, 0, 1, i)
        assert max(map(ball.distance, result["o"][0, i, 1].tolist(), o)) <= bound * largest
        assert ball.distance(float(result["lse"][0, 1, i]), lse) <= bound + 100 * 2.0**-53


def test_the_radius_covers_an_error_put_into_fp64():
    read = problem(lengths=(20, 20))
    result = fp64.forward(read)
    wrong = {"o": result["o"] + 1e-9, "lse": result["lse"] * (1 + 1e-9)}
    radius = ball.certify(read, wrong, seed="").radius
    assert radius["o"] == pytest.approx(1e-9, rel=1e-5)
    assert radius["lse"] >= 1e-9 * np.abs(result["lse"][0, 3, 19]) * (1 - 1e-5)
    assert all(value < 1e-13 for value in ball.certify(read, result, seed="").radius.values())


def test_an_empty_row_is_exact_or_infinitely_wrong():
    read = problem(lengths=(9, 4), causal=True)
    result = fp64.forward(read)
    clean = ball.certify(read, result, seed="")
    assert [0, 0, 0] in clean.rows.tolist()
    for lse in (0.0, math.inf, math.nan):
        result["lse"][0, 0, 0] = lse
        assert ball.certify(read, result, seed="").radius["lse"] == math.inf
    result["o"][0, 0, 0, 0] = 2.0**-30
    assert ball.certify(read, result, seed="").radius["o"] == 2.0**-30


def test_rows_with_a_visible_non_finite_number_are_skipped_and_counted():
    arrays = {name: np.random.default_rng(0).standard_normal((1, 8, 1, 4)).astype(np.float32) for name in "qkv"}
    arrays["v"][0, 5, 0, 0] = math.inf
    read = Problem(**arrays, scale=0.5, right=0)
    certificate = ball.certify(read, fp64.forward(read), seed="")
    assert certificate.rows[:, 2].max() < 5
    assert max(certificate.radius.values()) < 1e-14
    assert "with a visible non-finite number skipped" in certificate.provenance
    arrays["q"][:] = math.nan
    assert ball.certify(read, fp64.forward(read), seed="").radius == {}


def test_sampled_rows_follow_from_the_seed_and_the_shape_alone():
    read = problem(lengths=(300, 30), heads=(4, 2), batch=2)
    result = fp64.forward(read)
    rows = [ball.certify(read, result, seed=seed).rows for seed in ("a", "a", "b")]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    assert {0, 299, 150, 127, 128} <= set(rows[0][:, 2].tolist())
    assert len({tuple(row) for row in rows[0].tolist()}) == len(rows[0]) <= ball.MOST
    assert rows[0][0].tolist() == [1, 3, 299]


def test_long_rows_are_few(monkeypatch):
    monkeypatch.setattr(ball, "BUDGET", 100)
    read = problem(lengths=(300, 90))
    assert len(ball.certify(read, fp64.forward(read), seed="").rows) == ball.FEWEST


@pytest.mark.parametrize("spread", [0, 8, 60, 300])
def test_exact_sums_enclose_the_sum_of_fractions(spread):
    generator = np.random.default_rng(spread)
    terms = np.ldexp(generator.standard_normal((20, 50)), generator.integers(-spread, spread + 1, (20, 50)))
    terms[:, 25:] = -terms[:, :25] * (1 + 2.0**-52)  # the sum cancels to the last bits of its terms
    terms[0] = 0.0
    for row, found in zip(terms, ball.exact_sums(terms), strict=True):
        mantissa, exponent = (int(x) for x in found.mid().man_exp())
        distance = abs(Fraction(mantissa) * Fraction(2) ** exponent - sum(map(Fraction, row.tolist())))
        assert distance <= Fraction(float(found.rad()))
        assert float(found.rad()) <= 2.0**-80 * np.abs(row).max() + 2.0**-960


def test_a_plain_sum_leaves_that_ball():
    terms = np.array([[1.0, 2.0**-60, -1.0, 2.0**-61]])
    assert float(ball.exact_sums(terms)[0].mid()) == 2.0**-60 + 2.0**-61 != terms.sum()


@pytest.mark.parametrize(
    ("value", "exact", "expected"),
    [
        (1.0, 1.0, 0.0),
        (1.0, 1.5, 0.5),
        (-math.inf, -math.inf, 0.0),
        (0.0, -math.inf, math.inf),
        (math.nan, math.nan, 0.0),
        (math.nan, 0.0, math.inf),
        (math.nan, arb(1), math.inf),
        (math.inf, arb(1), math.inf),
    ],
)
def test_distance(value, exact, expected):
    assert ball.distance(value, exact) == expected


def test_distance_rounds_up():
    assert 0.5 + 0.125 <= ball.distance(1.0, arb(1.5, 0.125)) < 0.63
