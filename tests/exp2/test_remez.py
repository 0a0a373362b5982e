"""The exchange against a linear program on a grid (no exchange, no signs), and against what alternation demands."""

from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp, workdps
from scipy.optimize import linprog

from fa4verify.exp2.remez import Shape, minimax

SHAPES = [
    Shape(degree, constant, continuous, reduction)
    for degree in (2, 3)
    for constant in ("one", "free", "at-least-one")
    for continuous in (False, True)
    for reduction in ("floor", "nearest")
] + [Shape(1, "free"), Shape(4), Shape(4, "free", True)]


def best_on_grid(shape, points=401):
    """Return the smallest largest error on a grid, by a linear program over monomials."""
    left, right = shape.interval
    f = np.unique(np.concatenate([np.linspace(left, right, points), [left, right]]))
    rows = f[:, None] ** np.arange(shape.degree + 1) * np.exp2(-f)[:, None]
    scale = 10.0 ** (shape.degree + 1)  # errors near 1 for the solver's absolute tolerance
    ones = np.ones((f.size, 1))
    matrix = np.block([[rows * scale, -ones], [-rows * scale, -ones]])
    right_side = np.concatenate([np.full(f.size, scale), np.full(f.size, -scale)])
    equal, values = [], []
    if shape.constant_term == "one":
        equal.append(np.eye(1, shape.degree + 2)[0])
        values.append(1.0)
    if shape.continuous:
        equal.append(np.append(right ** np.arange(shape.degree + 1.0) - 2 * left ** np.arange(shape.degree + 1.0), 0.0))
        values.append(0.0)
    bounds = [(None, None)] * (shape.degree + 2)
    if shape.constant_term == "at-least-one":
        bounds[0] = (1.0, None)
    solved = linprog(
        np.eye(1, shape.degree + 2, shape.degree + 1)[0],
        A_ub=matrix,
        b_ub=right_side,
        A_eq=np.array(equal) if equal else None,
        b_eq=values or None,
        bounds=bounds,
    )
    assert solved.status == 0
    return solved.fun / scale


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_polynomial_is_better_on_a_grid_and_it_is_no_better_than_it_says(shape):
    found = minimax(shape)
    error = float(found.error)
    grid = best_on_grid(shape)
    # A grid of step h = 1/400 misses at most (h/2)^2 e''/2 of a peak, and e'' is at most 4 d^2 (d^2 - 1) / 3 of e
    # (Markov; d + 1 for the factor 2^-f): 8e-7 * 400. The ends are on the grid.
    assert grid * (1 - 1e-6) <= error <= grid * (1 + 3.2e-4)


@pytest.mark.parametrize("degree", range(8))
def test_the_free_error_alternates_and_is_level(degree):
    found = minimax(Shape(degree, "free"))
    with workdps(50):
        errors = [mp.polyval(found.coefficients[::-1], f) * mp.power(2, -f) - 1 for f in found.points]
        assert len(errors) == degree + 2
        assert all(a * b < 0 for a, b in pairwise(errors))
        assert max(abs(abs(e) / found.error - 1) for e in errors) < 1e-20


@pytest.mark.parametrize("degree", [3, 7])
def test_no_point_exceeds_the_level(degree):
    """Degrees whose errors float64 cannot see, on 500 points in mpmath."""
    found = minimax(Shape(degree))
    with workdps(50):
        worst = max(
            abs(mp.polyval(found.coefficients[::-1], mp.mpf(k) / 500) * mp.power(2, -mp.mpf(k) / 500) - 1)
            for k in range(501)
        )
        assert found.error * mp.mpf("0.999") < worst <= found.error * (1 + mp.mpf(10) ** -20)


def test_pinned_errors_keep_their_sign_across_zero():
    """Zero is inside [-1/2, 1/2] and every basis function vanishes there: plain alternation is wrong."""
    found = minimax(Shape(3, "one", False, "nearest"))
    with workdps(50):
        errors = [mp.polyval(found.coefficients[::-1], f) * mp.power(2, -f) - 1 for f in found.points]
    assert [int(mp.sign(f)) for f in found.points] == [-1, -1, 1, 1]
    assert [int(mp.sign(e)) for e in errors] == [-1, 1, 1, -1]


def test_real_optima_are_those_of_the_laboratory():
    """Free optimum over FA4's sup norm: 0.853 at degree 3, 0.831 at degree 2; pinned 0.977 (docs/exp2.md)."""
    fa4 = {2: 2.07552e-3, 3: 8.76296e-5}
    assert float(minimax(Shape(3, "free")).error) / fa4[3] == pytest.approx(0.853, abs=5e-4)
    assert float(minimax(Shape(2, "free")).error) / fa4[2] == pytest.approx(0.831, abs=5e-4)
    assert float(minimax(Shape(3)).error) / fa4[3] == pytest.approx(0.977, abs=5e-4)
    assert float(minimax(Shape(3, "one", continuous=True)).error) / fa4[3] == pytest.approx(1.176, abs=5e-4)


def test_a_constant_of_at_least_one_is_the_free_one_or_exactly_one():
    assert minimax(Shape(3, "at-least-one")).coefficients[0] == 1
    assert minimax(Shape(4, "at-least-one")).coefficients[0] > 1
    assert minimax(Shape(4, "at-least-one")).error == minimax(Shape(4, "free")).error


@pytest.mark.parametrize("arguments", [(8,), (-1,), (0, "one", True), (3, "two")])
def test_shapes_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match=r"degrees 0 to 7|constant"):
        Shape(*arguments)
