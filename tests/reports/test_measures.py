"""Figures of a Record: a missing one is None, a share has the right whole."""

from __future__ import annotations

import math

import pytest

from fa4verify.reports.measures import MEASURES, activity, fa_rule, is_share, ratio
from fa4verify.vocabulary import ACTIVITY, Metrics
from tests.reports.make import case, record


def test_ratios_to_perfection() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(1e-9, 0.0) == math.inf
    assert ratio(0.0, 0.0) is None
    assert ratio(None, 1.0) is None
    assert ratio(1.0, None) is None


@pytest.mark.parametrize(
    ("counter", "share"),
    [
        ("rescales_skipped", 3 / 4),
        ("rescales_done", 1 / 4),
        ("emulated_exp2", 0.1875),
        ("hardware_exp2", 0.8125),
        ("tiles_masked", 0.5),
        ("rows_dominant_not_one", 2 / 8),  # 1 batch, 2 heads, 4 rows
        ("p_saturated", 0.01),
        ("max_p", 16.0),
        ("tiles_visited", 10.0),
    ],
)
def test_counters_are_shares_of_their_whole(counter: str, share: float) -> None:
    counters = {
        "rescales_done": 1,
        "rescales_skipped": 3,
        "emulated_exp2": 18.75,
        "hardware_exp2": 81.25,
        "tiles_visited": 10,
        "tiles_masked": 5,
        "max_p": 16.0,
        "rows_dominant_not_one": 2,
        "p_saturated": 1,
    }
    assert counters.keys() == ACTIVITY.keys(), "a new counter needs a decision: share or number"
    assert activity(record("a", activity=counters), counter) == share
    assert activity(record("a", activity={}), counter) is None


def test_a_share_of_nothing_is_not_zero() -> None:
    nothing = record("a", activity={"rescales_done": 0, "rescales_skipped": 0})
    assert is_share("rescales_skipped")
    assert activity(nothing, "rescales_skipped") is None


@pytest.mark.parametrize(
    ("values", "decision"),
    [
        ({}, None),
        ({"fa_rule_value": 2.0}, None),
        ({"fa_rule_value": 2.0, "fa_rule_limit": 2.0}, True),
        ({"fa_rule_value": 2.1, "fa_rule_limit": 2.0}, False),
        ({"fa_rule_value": 1.0, "fa_rule_limit": 2.0, "fa_rule_passes": 0.0}, False),  # a NaN beside finite differences
        ({"fa_rule_value": 1.0, "fa_rule_passes": 1.0}, True),  # an infinite limit is not stored
    ],
)
def test_the_decision_of_flash_attentions_rule(values: dict[str, float], decision: bool | None) -> None:
    assert fa_rule(record("a", metrics={"o": Metrics(values)})) is decision


@pytest.mark.parametrize("operation", MEASURES)
def test_nothing_measured_is_a_dash_everywhere(operation: str) -> None:
    bare = record("a", "CRASHED", case=case("a", operation=operation))
    assert [measure.show(measure.of(bare)) for measure in MEASURES[operation]] == ["-"] * len(MEASURES[operation])


def test_figures_of_a_measured_case() -> None:
    shown = {measure.title: measure.show(measure.of(record("a"))) for measure in MEASURES["forward"]}
    assert shown == {
        "O rmse": "2.90e-5",
        "/floor": "1.04",
        "/base": "0.500",
        "max ulp": "1.50",
        "LSE max": "1.25e-7",
        "FA rule": "pass",
        "skip": "75%",
        "emu": "-",
    }


def test_a_backwards_figures() -> None:
    metrics = {
        "dq": Metrics({"rmse": 3.0, "floor_rmse": 2.0, "worst_row_relative_l2": 0.1}),
        "dv": Metrics({"rmse": 1.0, "floor_rmse": 0.0, "worst_row_relative_l2": 0.3}),
        "delta": Metrics({"max_abs": 0.5}),
    }
    given = record("a", metrics=metrics)
    values = [measure.of(given) for measure in MEASURES["backward"]]
    assert [measure.title for measure in MEASURES["backward"]][:4] == ["dQ rmse", "/floor", "dK rmse", "/floor"]
    assert values == [3.0, 1.5, None, None, 1.0, math.inf, 0.3, 0.5, None]
