"""The full truth table of classes, and the elementwise rules that it replaces."""

import math

import numpy as np
import pytest

from fa4verify.judgement import judge, measure
from fa4verify.judgement.classes import CLASSES, classify, in_words
from tests.judgement.attention import budget, plain

VALUE = {"finite": 1.5, "+inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@pytest.mark.parametrize("actual", CLASSES)
@pytest.mark.parametrize("expected", CLASSES)
def test_only_the_diagonal_of_the_table_passes(expected, actual):
    o = np.full((1, 1, 1, 4), 2.0)
    got = o.copy()
    o[..., 1], got[..., 1] = VALUE[expected], VALUE[actual]
    case, output, truth = plain(o, got, budgets=(budget("o", "rmse", limit=1.0),))
    metrics = measure(case, output, truth)
    verdict = judge(case, metrics, {}, output, truth)
    cell = f"{expected}>{actual}"
    assert metrics["o"].classes[cell] == (4 if cell == "finite>finite" else 1)
    assert metrics["o"].values["nonfinite_mismatches"] == (expected != actual)
    assert verdict.outcome == ("PASS" if expected == actual else "FAIL")
    if expected != actual:
        assert verdict.findings[0].message == f"o: 1 element expected {expected}, got {actual}"
    assert all(math.isfinite(value) for value in metrics["o"].values.values())


@pytest.mark.parametrize("actual", ["finite", "+inf", "nan"])
def test_what_an_elementwise_rule_does_to_an_empty_row(actual):
    """G4: it rejects the right -inf and accepts every wrong answer: a relative error of NaN is not above anything."""

    def passes(reference, value):
        with np.errstate(invalid="ignore"):
            return not np.abs(np.float64(value) - reference) / np.abs(np.float64(reference)) > 1e-3

    assert passes(-math.inf, VALUE[actual])
    assert not np.allclose(-math.inf, VALUE[actual])


def test_a_nan_truth_lets_nothing_pass():
    """G3: a reference of NaN made any result pass."""
    case, output, truth = plain(np.full((1, 2, 1, 4), np.nan), np.zeros((1, 2, 1, 4)), budgets=(budget("o", "rmse"),))
    assert judge(case, measure(case, output, truth), {}, output, truth).outcome == "FAIL"


def test_the_expected_class_is_that_of_the_rounded_truth():
    o = np.array([65519.0, 65521.0]).reshape(1, 1, 1, 2)
    case, output, truth = plain(o, np.array([65504.0, np.inf]).reshape(1, 1, 1, 2), dtype="fp16")
    metrics = measure(case, output, truth)["o"]
    assert metrics.classes == {"finite>finite": 1, "+inf>+inf": 1}
    assert metrics.values["max_abs"] == 15.0


def test_edges_of_the_classes():
    edges = np.array([0.0, -0.0, 5e-324, np.finfo(float).max, np.inf, -np.inf, np.nan, -np.nan])
    assert classify(edges).tolist() == [0, 0, 0, 0, 1, 2, 3, 3]
    assert in_words({"finite>finite": 7, "-inf>finite": 3, "nan>+inf": 1}) == (
        "3 elements expected -inf, got finite; 1 element expected nan, got +inf"
    )
