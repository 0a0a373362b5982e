"""Every kind of budget at its limit, just below and just above, and what cannot be evaluated."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa4verify.judgement.budgets import evaluate
from fa4verify.vocabulary import Metrics
from tests.judgement.attention import budget, case

VALUES = {
    "elements": 1000.0,
    "nonfinite_mismatches": 0.0,
    "rmse": 3e-4,
    "relative_rmse": 3e-3,
    "truth_rms": 0.1,
    "max_abs": 2e-3,
    "mean_error": -4e-5,
    "gain_error": -2e-4,
    "ulp_p99": 3.0,
    "floor_rmse": 1e-4,
    "floor_max_abs": 8e-4,
    "expected_rmse": 2e-4,
}
METRICS = {"o": Metrics(VALUES)}
BASELINE = {"o": Metrics({"rmse": 6e-4, "mean_error": -1e-5})}
BF16 = case(dtype="bf16", baseline="standard")

EVERY_KIND = [
    ("rmse", "absolute", 3e-4, 1.0),
    ("ulp_p99", "ulp", 3.0, 1.0),
    ("rmse", "ratio_to_baseline", 3e-4, 6e-4),
    ("rmse", "ratio_to_floor", 3e-4, 1e-4),
    ("max_abs", "ratio_to_floor", 2e-3, 8e-4),
    ("relative_rmse", "ratio_to_floor", 3e-3, 1e-3),
    ("rmse", "expected_error", 3e-4, 2e-4),
    ("mean_error", "absolute", 4e-5, 1.0),
    ("gain_error", "absolute", 2e-4, 1.0),
    ("mean_error", "ratio_to_baseline", 4e-5, 1e-5),
]


@pytest.mark.parametrize(("metric", "kind", "size", "unit"), EVERY_KIND)
def test_a_kind_at_its_limit(metric, kind, size, unit):
    """`size` is |value|, `unit` what the limit is multiplied by; the last bits of limit * unit decide."""
    factor = size / unit
    while factor * unit < size:
        factor = math.nextafter(factor, math.inf)

    def held(limit):
        return evaluate(budget("o", metric, kind, limit), BF16, METRICS, BASELINE).held

    assert held(factor) is True
    assert held(factor * (1 + 1e-15)) is True
    assert held(factor * (1 - 1e-15)) is False
    found = evaluate(budget("o", metric, kind, factor), BF16, METRICS, BASELINE)
    assert found.value == VALUES[metric]
    assert found.limit == pytest.approx(size)
    assert found.ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("value", "held"), [(2.0, True), (1.5, True), (2.5, True), (1.4999, False), (2.5001, False), (-2.0, False)]
)
def test_equals_is_two_sided(value, held):
    found = evaluate(budget("o", "x", "equals", 0.5, value=2.0), BF16, {"o": Metrics({"x": value})}, {})
    assert found.held is held
    assert found.ratio == pytest.approx(abs(value - 2.0) / 0.5)


def test_words_say_how_the_limit_came_about():
    told = {
        kind: evaluate(budget("o", "rmse", kind, 2.0), BF16, METRICS, BASELINE).words
        for kind in ("absolute", "ulp", "ratio_to_baseline", "ratio_to_floor", "expected_error")
    }
    assert told == {
        "absolute": "absolute",
        "ulp": "in ulp of bf16",
        "ratio_to_baseline": "2 x 0.0006 of the baseline standard",
        "ratio_to_floor": "2 x 0.0001 of a correctly rounded output",
        "expected_error": "2 x 0.0002 expected of a correct kernel",
    }


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"metric": "max_abs", "kind": "ratio_to_baseline"}, "no max_abs of a baseline to compare with (standard)"),
        ({"metric": "ulp_p99", "kind": "ratio_to_floor"}, "ulp_p99 has no rounding floor"),
        ({"metric": "nonsense"}, "nonsense was not measured on o"),
        ({"tensor": "lse"}, "the kernel returned no lse that could be measured"),
    ],
)
def test_what_cannot_be_evaluated_says_why(changed, words):
    found = evaluate(budget(**({"tensor": "o", "metric": "rmse"} | changed)), BF16, METRICS, BASELINE)
    assert found.held is None
    assert words in found.words


def test_no_moments_no_expectation():
    values = {name: value for name, value in VALUES.items() if name != "expected_rmse"}
    found = evaluate(budget("o", "rmse", "expected_error"), BF16, {"o": Metrics(values)}, {})
    assert found.held is None
    assert "no moments" in found.words


def test_no_baseline_named():
    found = evaluate(budget("o", "rmse", "ratio_to_baseline"), case(), METRICS, {})
    assert found.held is None
    assert "the case names none" in found.words


def test_a_baseline_without_error_demands_exactness():
    exact = {"o": Metrics({"rmse": 0.0})}
    asked = budget("o", "rmse", "ratio_to_baseline", 100.0)
    assert evaluate(asked, BF16, METRICS, exact).held is False
    assert evaluate(asked, BF16, exact, exact).held is True


def test_a_truth_of_zeros_has_no_relative_error():
    zeros = {"elements": 4.0, "nonfinite_mismatches": 0.0, "rmse": 0.5, "truth_rms": 0.0}
    found = evaluate(budget("o", "relative_rmse", limit=10.0), BF16, {"o": Metrics(zeros)}, {})
    assert found.held is False
    assert "the truth is zero in every finite element" in found.words


def test_without_a_finite_element_classes_decide():
    right = Metrics({"elements": 4.0, "nonfinite_mismatches": 0.0})
    wrong = Metrics({"elements": 4.0, "nonfinite_mismatches": 1.0})
    empty = Metrics({"elements": 0.0, "nonfinite_mismatches": 0.0})
    asked = budget("lse", "max_abs")
    found = evaluate(asked, BF16, {"lse": right}, {})
    assert found.held is True
    assert found.words.startswith("4 elements equal in class and value")
    assert evaluate(asked, BF16, {"lse": wrong}, {}).held is None
    assert evaluate(asked, BF16, {"lse": empty}, {}).held is True


@pytest.mark.parametrize(
    ("metric", "kind", "limit", "per_unit"),
    [
        ("rmse", "absolute", 1e-3, 1.0),
        ("max_abs", "ratio_to_floor", 5.0, 1.0),
        ("mean_error", "equals", 1e-3, 1.0),
        ("relative_rmse", "absolute", 1e-2, 10.0),  # 1 / truth_rms
        ("gain_error", "absolute", 1e-3, 10.0),
        ("ulp_p99", "ulp", 4.0, 1 / (0.1 * 2.0**-8)),
    ],
)
def test_a_blunt_truth_decides_nothing(metric, kind, limit, per_unit):
    """Just below and just above a tenth of the limit, in the tensor's unit."""
    asked = budget("o", metric, kind, limit)
    edge = 0.1 * evaluate(asked, BF16, METRICS, {}).limit / per_unit
    assert evaluate(asked, BF16, METRICS, {}, radius=0.999 * edge).held is True
    blunt = evaluate(asked, BF16, METRICS, {}, radius=1.001 * edge)
    assert blunt.held is None
    assert "the truth is certain to" in blunt.words


def test_what_is_far_above_its_limit_fails_under_a_blunt_truth_too():
    asked = budget("o", "rmse", limit=1e-5)
    assert evaluate(asked, BF16, METRICS, {}, radius=1e-5).held is False
    assert evaluate(asked, BF16, METRICS, {}, radius=2.95e-4).held is None


def test_an_exact_output_under_a_limit_of_zero():
    """Where only exactness holds, a tenth of a rounding unit of the truth (0.1 * 2^-8 here) is sharp enough."""
    exact = {"o": Metrics(VALUES | {"rmse": 0.0, "floor_rmse": 0.0})}
    asked = budget("o", "rmse", "ratio_to_floor", 2.0)
    assert evaluate(asked, BF16, exact, {}, radius=1e-16).held is True
    assert evaluate(asked, BF16, exact, {}, radius=1e-3).held is None


@given(st.floats(0, 1e30), st.floats(0, 1e30), st.floats(1, 1e6))
def test_raising_a_limit_never_breaks_a_budget(value, limit, factor):
    measured = {"o": Metrics({"rmse": value})}
    tight, wide = (evaluate(budget("o", "rmse", limit=x), BF16, measured, {}).held for x in (limit, limit * factor))
    assert tight is (value <= limit)
    assert wide or not tight


def test_a_limit_that_is_nan_holds_nothing():
    assert evaluate(budget("o", "rmse", limit=np.nan), BF16, METRICS, {}).held is False
