"""The weights of the three measures: against closed forms, mpmath's quadrature and random rows of scores."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from fa4verify.exp2 import measures
from fa4verify.exp2.evaluate import evaluate
from fa4verify.exp2.sets import CoefficientSet, shipped
from fa4verify.exp2.statistics import collect, everything, fractions

F32 = np.float32
DRAWS = 4_000_000


@pytest.fixture(scope="module")
def figures():
    return collect(everything(-40, -1), shipped(3))


def test_lengths_add_up(figures):
    assert measures.uniform(figures).sum() == 39.0
    assert measures.uniform(figures)[measures.within(figures, -8, -3)].sum() == 5.0
    positive = collect(everything(2, 128), shipped(3))
    assert measures.uniform(positive).sum() == 126.0
    assert np.all(measures.attention(positive) == 0)


def test_attention_by_quadrature():
    """P(x < b) of a key that is not the largest of 1024 normal scores, by mpmath."""

    def below(b):
        def integrand(m):
            given = mpmath.ncdf(m + b * mpmath.log(2)) / mpmath.ncdf(m)
            return given * measures.KEYS * mpmath.npdf(m) * mpmath.ncdf(m) ** (measures.KEYS - 1)

        return mpmath.quad(integrand, [-2, 1, 2, 2.5, 3, 3.5, 4, 5, 6, 9])

    for b in (-1e-6, -0.01, -1.0, -4.0, -9.0):
        got = float(measures._below(np.array([b]))[0])
        assert got == pytest.approx(float(below(b)), abs=1e-9)  # what `measures` states


def test_summaries_of_draws(figures):
    """Mean and share of bf16 mismatches of rows that are really drawn, within five standard errors."""
    generator = np.random.Generator(np.random.Philox(key=19))
    scores = generator.standard_normal((DRAWS // measures.KEYS, measures.KEYS))
    x = ((scores - scores.max(axis=1, keepdims=True)) / math.log(2)).astype(F32)
    x = x[(x < -1) & (x > -40)]
    error = evaluate(x, shipped(3).coefficients) / np.exp2(x.astype(np.float64)) - 1
    some = measures.within(figures, -40, -1)
    found = measures.summarise("", "attention", figures, some, measures.attention(figures), 0, 0.0)
    assert found.mean == pytest.approx(error.mean(), abs=5 * error.std() / math.sqrt(x.size))
    assert found.rmse == pytest.approx(math.sqrt(np.mean(error**2)), rel=5 / math.sqrt(x.size))
    assert found.rmse != found.mean


def test_uniform_in_x_by_a_grid():
    """Of [-3, -2) alone: 2^22 evenly spaced float32, each with the same weight, are that mean itself."""
    figures = collect(everything(-3, -2), shipped(4))
    x = -(2 + np.arange(1, 2**22 + 1) / 2**22)
    error = evaluate(x.astype(F32), shipped(4).coefficients) / np.exp2(x) - 1
    some = measures.within(figures, -3, -2)
    found = measures.summarise("", "x", figures, some, measures.uniform(figures), 0, 0.0)
    assert found.mean == pytest.approx(error.mean(), abs=1e-15)
    assert found.rmse == pytest.approx(math.sqrt(np.mean(error**2)), rel=1e-9)


def test_measures_differ():
    """Floats counted alike, x uniform and f uniform give other means: the measure has to be said."""
    chosen = CoefficientSet("x", shipped(3).coefficients)
    figures, once = collect(everything(-1, 0), chosen), collect(fractions(), chosen)
    some = measures.within(figures, -1, 0)
    counted = figures.total.sum() / figures.count.sum()
    by_x = measures.summarise("", "x", figures, some, measures.uniform(figures), 0, 0.0).mean
    by_f = once.total.sum() / 2**24
    assert counted < -7e-5 < 8.2e-6 < by_x < 8.3e-6
    assert by_f == pytest.approx(by_x, rel=1e-3)
