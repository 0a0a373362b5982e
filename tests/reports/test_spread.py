"""How far a figure may move: the metrics computed anew, in plain numpy, against a truth that is off by its radius."""

from __future__ import annotations

import numpy as np
import pytest

from fa4verify.reports.spread import COUNTED, DECIDES, IN_UNITS, QUOTIENTS, same_sums, seed_spread, tolerance
from fa4verify.vocabulary import METRICS, Metrics, Profile


def measured(got: np.ndarray, truth: np.ndarray, radius: float | None) -> Metrics:
    """Return the figures of docs/metrics.md, straight from their formulas; the format is bf16."""
    error, ulp = got - truth, np.exp2(np.floor(np.log2(np.abs(truth))) - 7)
    floor = np.rint(truth / ulp) * ulp - truth
    values = {
        "rmse": np.sqrt(np.mean(error**2)),
        "truth_rms": np.sqrt(np.mean(truth**2)),
        "max_abs": np.max(np.abs(error)),
        "mean_error": np.mean(error),
        "floor_rmse": np.sqrt(np.mean(floor**2)),
        "floor_max_abs": np.max(np.abs(floor)),
        "gain_error": np.sum(error * truth) / np.sum(truth**2),
        "ulp_p99": 1.0,
    }
    values["relative_rmse"] = values["rmse"] / values["truth_rms"]
    profile = None if radius is None else Profile(radius=radius)
    return Metrics({name: float(value) for name, value in values.items()}, profile=profile)


def shifts(truth: np.ndarray, error: np.ndarray) -> list[np.ndarray]:
    """Return directions in which a truth may be off: at random, all one way, along the error, along the truth."""
    return [np.random.default_rng(1).uniform(-1, 1, truth.shape), np.ones_like(truth), -np.sign(error), np.sign(truth)]


@pytest.mark.parametrize("radius", [1e-13, 1e-6])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_a_truth_that_is_off_by_its_radius_moves_no_figure_further(radius, size):
    rng = np.random.default_rng(0)
    truth = size * rng.standard_normal(4096)
    got = truth * (1 + 2.0**-8 * rng.uniform(-1, 1, truth.shape))
    old, taken = measured(got, truth, radius), dict.fromkeys((*IN_UNITS, *QUOTIENTS), 0.0)
    for shift in shifts(truth, got - truth):
        new = measured(got, truth + 2 * radius * shift, radius)
        for name in taken:
            allowed = tolerance(name, old, new)
            assert allowed is not None
            taken[name] = max(taken[name], abs(new.values[name] - old.values[name]) / allowed)
    assert max(taken.values()) <= 1
    # Tight, too: where the radius is what moves it, a maximum uses half of it (the radii of both truths are doubled).
    if radius == 1e-6:
        assert taken["max_abs"] > 0.49
        assert taken["mean_error"] > 0.49


def test_what_no_radius_bounds_is_not_compared():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(64)
    with_radius, without = (measured(truth * 1.01, truth, radius) for radius in (1e-13, None))
    assert tolerance("ulp_p99", with_radius, with_radius) is None
    assert tolerance("rmse", with_radius, without) is None
    empty = Metrics({"relative_rmse": 0.0, "truth_rms": 0.0}, profile=Profile(radius=0.0))
    assert tolerance("relative_rmse", empty, empty) is None


def test_counts_are_exact_everywhere():
    counts = Metrics(dict.fromkeys(COUNTED, 1.0))
    assert {tolerance(name, counts, counts) for name in COUNTED} == {0.0}
    assert not COUNTED & (IN_UNITS | QUOTIENTS)
    assert set(METRICS) >= (IN_UNITS | QUOTIENTS), "no figure that does not exist"


def test_the_number_of_cores_does_not_decide():
    here = dict.fromkeys((*DECIDES, "cores"), "a")
    assert same_sums(here, here | {"cores": "b"})
    for name in DECIDES:
        assert not same_sums(here, here | {name: "b"})
        assert not same_sums(here, {key: value for key, value in here.items() if key != name})


def test_one_wild_seed_cannot_excuse_itself():
    assert seed_spread([1.0, 2.0, 1.5], [1.0, 100.0, 1.5]) == 1.0
    assert seed_spread([1.0], [1.0, 3.0]) == 2.0, "a run with one seed has no say"
    assert seed_spread([1.0], [3.0]) == 0.0


def test_a_truth_off_by_its_last_places_in_a_row_that_was_not_sampled_moves_a_maximum_no_further():
    truth = np.full(64, 300.0)
    old = measured(truth + 1e-5, truth, 0.0)
    for places, within in ((4, True), (64, False)):
        moved = truth.copy()
        moved[7] += places * np.spacing(300.0)
        new = measured(truth + 1e-5, moved, 0.0)
        allowed = tolerance("floor_max_abs", old, new)
        assert allowed is not None
        assert (abs(new.values["floor_max_abs"] - old.values["floor_max_abs"]) <= allowed) is within
