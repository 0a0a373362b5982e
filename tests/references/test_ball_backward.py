"""Balls of gradients: they enclose mpmath's values, the radius notices an error, bounds stand in where balls cost."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fa4verify import references
from fa4verify.references import backward, ball_backward
from fa4verify.references.ball import distance
from fa4verify.references.problem import Problem
from fa4verify.vocabulary import Budget

from .gradients import by_mpmath, case_of, draw_backward, problem_backward
from .problems import FEATURES, name
from .test_ball import encloses


def known_exactly(read, upstream):
    def known(b, h, i):
        row = ball_backward.row(read, upstream, b, h, i, gradient=False)
        return row.lse, row.delta - (0.0 if upstream.dlse is None else float(upstream.dlse[b, h, i]))

    return known


@pytest.mark.parametrize("features", [*FEATURES[::5], *({**each, "dlse": False} for each in FEATURES[3::31])], ids=name)
def test_encloses_mpmath(features):
    read, upstream = problem_backward(**features)
    expected = by_mpmath(**features)
    known = known_exactly(read, upstream)
    for b, h, i in expected["delta"]:
        row = ball_backward.row(read, upstream, b, h, i)
        assert encloses(row.delta, expected["delta"][b, h, i])
        assert all(encloses(x, expected["dq"][b, i, h, c]) for c, x in enumerate(row.dq))
    for b, j, h in np.ndindex(read.k.shape[:3]):
        dk, dv = ball_backward.key(read, upstream, b, h, j, known)
        assert all(encloses(x, expected["dk"][b, j, h, c]) for c, x in enumerate(dk))
        assert all(encloses(x, expected["dv"][b, j, h, c]) for c, x in enumerate(dv))
    if read.sink is not None:
        for h in range(read.q.shape[2]):
            assert encloses(ball_backward.sink_gradient(read, h, known), expected["dsink"][(h,)])


def test_balls_are_sharp_where_the_cap_is_met():
    """1 / cosh^2 keeps its digits where 1 - tanh^2 would be left with its radius."""
    features = {"lengths": (4, 14), "heads": (2, 1), "dims": (8, 2), "spread": 30.0, "softcap": 15.0}
    read, upstream = problem_backward(**features)
    for b, h, i in by_mpmath(**features)["delta"]:
        for x in ball_backward.row(read, upstream, b, h, i).dq:
            assert float(x.rad()) <= 2.0**-60 * abs(float(x.mid()))


@pytest.mark.parametrize("wrong", ["mask", "dlse", "sink"])
def test_a_ball_of_another_problem_does_not_enclose(wrong):
    features = {"lengths": (5, 5), "causal": True, "learnable_sink": True}
    read, upstream = problem_backward(**features)
    expected = by_mpmath(**features)
    changed = {"mask": replace(read, right=None), "sink": replace(read, sink=None)}.get(wrong, read)
    upstream = replace(upstream, dlse=None) if wrong == "dlse" else upstream
    row = ball_backward.row(changed, upstream, 0, 0, 2)
    dk, _ = ball_backward.key(changed, upstream, 0, 0, 2, known_exactly(changed, upstream))
    assert encloses(row.delta, expected["delta"][0, 0, 2]) == (wrong == "dlse")
    assert not any(encloses(x, expected["dq"][0, 2, 0, c]) for c, x in enumerate(row.dq))
    assert not any(encloses(x, expected["dk"][0, 2, 0, c]) for c, x in enumerate(dk))
    if wrong != "sink":
        gradient = ball_backward.sink_gradient(changed, 0, known_exactly(changed, upstream))
        assert not encloses(gradient, expected["dsink"][(0,)])


SIZES = [{}, {"causal": True}, {"window_size": (40, 0)}, {"softcap": 10.0}]


@pytest.mark.parametrize("features", SIZES, ids=name)
def test_certifies_at_real_sizes_and_notices_an_error(features):
    features = {"lengths": (300, 300), "dims": (32, 32), "spread": 1.0, "learnable_sink": True, **features}
    read, upstream = problem_backward(**features)
    result = backward.backward(read, upstream)
    radius = ball_backward.certify(read, upstream, result, seed="some case").radius
    assert set(radius) == {"dq", "dk", "dv", "delta", "dsink"}
    assert 0 < max(radius["dq"], radius["delta"]) < 1e-14
    assert 0 < max(radius["dk"], radius["dv"], radius["dsink"]) < 1e-8  # 1e-12 of sums of 1e3 terms of size 10
    for tensor in radius:
        wrong = result | {tensor: result[tensor] + 1e-6}
        found = ball_backward.certify(read, upstream, wrong, seed="some case").radius
        assert found[tensor] == pytest.approx(1e-6, rel=0.02)


def test_what_is_too_long_for_balls_comes_with_a_bound(monkeypatch):
    features = {"lengths": (30, 40), "learnable_sink": True, "causal": True}
    read, upstream = problem_backward(**features)
    result = backward.backward(read, upstream)
    exact = ball_backward.certify(read, upstream, result, seed="")
    assert "a-priori" not in exact.provenance
    assert max(exact.radius.values()) < 1e-13
    monkeypatch.setattr(ball_backward, "EXACT", 0)
    bounded = ball_backward.certify(read, upstream, result, seed="")
    assert "LSE and delta of the rows within their a-priori bound" in bounded.provenance
    assert exact.radius["dq"] == bounded.radius["dq"]
    for tensor in ("dk", "dv", "dsink"):
        assert exact.radius[tensor] < bounded.radius[tensor] < 1e-9


@pytest.mark.parametrize("extra", [{}, {"softcap": 2.5}, {"learnable_sink": True}, {"spread": 20.0}], ids=name)
def test_those_bounds_enclose_and_a_wrong_row_leaves_them(extra):
    features = {"lengths": (9, 40), "causal": True, **extra}
    read, upstream = problem_backward(**features)
    result = backward.backward(read, upstream)
    certifier = ball_backward._Certifier(read, upstream, result, "")
    known = known_exactly(read, upstream)
    for b, h, i in np.ndindex(result["lse"].shape):
        for exact, bounded in zip(known(b, h, i), certifier._within_bounds(b, h, i), strict=True):
            assert bounded.contains(exact)
            assert not (bounded + 1e-8).contains(exact)


def test_rows_and_keys_that_see_a_non_finite_number_are_skipped_and_counted():
    arrays = {
        key: np.random.default_rng(n).standard_normal((1, 8, 1, 4)).astype(np.float32) for n, key in enumerate("qkvo")
    }
    dout = arrays.pop("o")
    arrays["v"][0, 5, 0, 0] = math.inf
    read, upstream = Problem(**arrays, scale=0.5, right=0), backward.Upstream(dout)
    result = backward.backward(read, upstream)
    certificate = ball_backward.certify(read, upstream, result, seed="")
    assert certificate.rows[:, 2].max() < 5
    assert max(certificate.radius.get(key, 0.0) for key in ("dq", "delta")) < 1e-14
    assert "with a visible non-finite number skipped" in certificate.provenance
    assert not {"dk", "dv"} & set(certificate.radius)  # the last row sees every key
    arrays["q"][:] = math.nan
    read = Problem(**arrays, scale=0.5, right=0)
    assert ball_backward.certify(read, upstream, backward.backward(read, upstream), seed="").radius == {}


def test_an_empty_row_is_exact_or_wrong():
    read, upstream = problem_backward(lengths=(9, 4), causal=True)
    result = backward.backward(read, upstream)
    assert [0, 0, 0] in ball_backward.certify(read, upstream, result, seed="").rows.tolist()
    result["dq"][0, 0, 0, 0] = 2.0**-30
    assert ball_backward.certify(read, upstream, result, seed="").radius["dq"] == 2.0**-30
    result["dq"][0, 0, 0, 0] = math.nan
    assert ball_backward.certify(read, upstream, result, seed="").radius["dq"] == math.inf


def test_samples_follow_from_the_seed_and_the_shape_alone():
    read, upstream = problem_backward(lengths=(300, 30), heads=(4, 2), batch=2)
    result = backward.backward(read, upstream)
    found = [ball_backward.certify(read, upstream, result, seed=seed) for seed in ("a", "a", "b")]
    np.testing.assert_array_equal(found[0].rows, found[1].rows)
    assert found[0].provenance == found[1].provenance
    assert not np.array_equal(found[0].rows, found[2].rows)
    assert found[0].rows[:2].tolist() == [[1, 3, 299], [0, 0, 0]]


def test_distance_to_a_certified_key_is_what_certify_says():
    """One key by hand, so that the certificate is not its own witness."""
    read, upstream = problem_backward(lengths=(5, 5), causal=True)
    result = backward.backward(read, upstream)
    dk, dv = ball_backward.key(read, upstream, 0, 1, 4, known_exactly(read, upstream))
    radius = ball_backward.certify(read, upstream, result, seed="").radius  # the last key of the last head is sampled
    assert max(map(distance, result["dk"][0, 4, 1].tolist(), dk)) <= radius["dk"]
    assert max(map(distance, result["dv"][0, 4, 1].tolist(), dv)) <= radius["dv"]


MODEL = Budget("model", "dq", "rmse", "expected_error", 2.0, "here")


@pytest.mark.parametrize("sink", [False, True])
def test_solve_backward_gives_tensors_radius_rows_and_provenance(sink):
    features = {"lengths": (20, 30), "causal": True, "learnable_sink": sink, "dims": (16, 8)}
    truth = references.solve_backward(case_of(features), draw_backward(**features))
    shapes = {"dq": (1, 20, 4, 16), "dk": (1, 30, 2, 16), "dv": (1, 30, 2, 8), "delta": (1, 4, 20)}
    shapes |= {"dsink": (4,)} if sink else {}
    assert {key: values.shape for key, values in truth.tensors.items()} == shapes
    assert set(truth.radius) == set(shapes)
    assert truth.sampled_rows.shape[1] == 3
    assert set(truth.moments) == {"queries_without_key", "keys_without_query"}
    assert all(isinstance(value, str) for value in truth.provenance.values())


def test_moments_come_only_with_a_budget_that_needs_them():
    truth = references.solve_backward(case_of({"budgets": (MODEL,)}), draw_backward())
    assert {"dq_spread", "dk_from_delta", "dv_magnitude", "delta_from_o", "ds_max"} <= set(truth.moments)
    assert not set(truth.moments) & set(truth.tensors)


def test_dlse_is_read_where_it_is_given():
    with_dlse, without = (references.solve_backward(case_of({}), draw_backward(dlse=dlse)) for dlse in (True, False))
    np.testing.assert_array_equal(with_dlse.tensors["delta"], without.tensors["delta"])
    np.testing.assert_array_equal(with_dlse.tensors["dv"], without.tensors["dv"])
    assert np.abs(with_dlse.tensors["dq"] - without.tensors["dq"]).max() > 0.01
