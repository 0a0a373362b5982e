"""Cases that trivial outputs would pass are refused, and honest ones are not."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fa4verify.judgement import admit, judge, measure
from fa4verify.vocabulary import Output, Truth
from tests.judgement.attention import budget, case, plain, problem, to_torch


def refused(p, *budgets, baseline=None) -> list[str]:
    return admit(p.with_case(budgets=budgets).case, p.truth, baseline or {})


def test_honest_budgets_are_admitted():
    assert refused(problem(), budget("o", "relative_rmse", limit=8e-3), budget("lse", "max_abs", limit=1e-4)) == []


@pytest.mark.parametrize(
    ("metric", "kind", "limit"),
    [
        ("rmse", "absolute", 1.0),
        ("relative_rmse", "absolute", 2.0),
        ("max_abs", "absolute", 20.0),
        ("worst_row_relative_l2", "absolute", 50.0),
        ("ulp_max", "ulp", 1e40),
        ("rmse", "ratio_to_floor", 1e4),
        ("rmse", "expected_error", 1e4),
        ("rmse", "ratio_to_baseline", 1e4),
        ("elements", "equals", 1e9),
    ],
)
@pytest.mark.parametrize("tensor", ["o", "lse"])
def test_a_budget_of_any_kind_can_be_vacuous(tensor, metric, kind, limit):
    p = problem().with_case(baseline="standard")
    limit = 1e12 if tensor == "lse" and kind.startswith(("ratio", "expected")) else limit
    baseline = measure(p.case, p.output, p.truth)
    reasons = refused(p, budget(tensor, metric, kind, limit), baseline=baseline)
    assert len(reasons) == 4 or (tensor == "lse" and reasons)
    assert f"{tensor}-{metric} (" in reasons[0]


def test_reasons_name_output_budget_value_and_limit():
    (*_, shuffled) = refused(problem(), budget("o", "mean_error", limit=1e-3))
    assert shuffled.startswith("o: the truth's elements shuffled would pass o-mean_error (mean_error ")
    assert shuffled.endswith("limit 0.001 absolute)")


def test_one_sharp_budget_saves_a_tensor_but_not_its_neighbour():
    p = problem()
    sharp, vague = budget("o", "rmse", limit=1e-3), budget("o", "max_abs", limit=100.0)
    assert refused(p, vague)
    assert refused(p, vague, sharp) == []
    assert all(reason.startswith("lse:") for reason in refused(p, sharp, budget("lse", "max_abs", limit=100.0)))


def test_a_wide_tolerance_on_a_narrow_range():
    """G1: atol 0.5 on V in [0.5, 1], which accepted anything at all; the constant 0.75 is the truth's mean."""
    p = problem(v=0.5 + 0.5 * np.random.default_rng(0).random((1, 256, 2, 16)))
    reasons = refused(p, budget("o", "max_abs", limit=0.5))
    assert {reason.split(" would pass")[0].split(": ")[1] for reason in reasons} == {
        "the truth's mean everywhere",
        "noise of the truth's scale",
        "the truth's elements shuffled",
    }
    assert refused(p, budget("o", "max_abs", limit=0.9))[0].startswith("o: zeros would pass")
    assert refused(p, budget("o", "relative_rmse", limit=5e-3)) == []


def test_zeros_where_outputs_are_small():
    """G2: uniform attention over many keys, |O| ~ 1/sqrt(N), under an absolute tolerance of 5e-2."""
    p = problem(seqlen_q=8, seqlen_k=8192, q_scale=0.0)
    assert np.sqrt(np.mean(p.truth.tensors["o"] ** 2)) == pytest.approx(8192**-0.5, rel=0.1)
    assert any("zeros would pass" in reason for reason in refused(p, budget("o", "max_abs", limit=5e-2)))
    assert refused(p, budget("o", "relative_rmse", limit=1e-2)) == []


def test_ones_in_v_make_a_constant_that_is_no_counterexample():
    """V = 1: the mean and the shuffle are the truth, zeros are not."""
    p = problem(v=np.ones((1, 256, 2, 16)))
    assert refused(p, budget("o", "max_abs", limit=1e-2)) == []
    assert any("zeros" in reason for reason in refused(p, budget("o", "max_abs", limit=2.0)))


def test_nothing_but_rows_without_keys():
    """O is zero and LSE -inf everywhere: noise of size 1 fails the budget, finite numbers fail the classes."""
    o, lse = np.zeros((1, 4, 2, 8)), np.full((1, 2, 4), -math.inf)
    masked = case(budgets=(budget("o", "rmse", limit=1e-3), budget("lse", "max_abs", limit=1e-3)))
    assert admit(masked, Truth({"o": o, "lse": lse}), {}) == []


def test_a_truth_of_zeros_still_needs_a_budget_that_noise_breaks():
    o = np.zeros((1, 4, 2, 8))
    given_case, _, truth = plain(o, o, budgets=(budget("o", "rmse", limit=10.0),))
    assert admit(given_case, truth, {})[0].startswith("o: noise of the truth's scale would pass o-rmse")


def test_non_finite_truth_does_not_save_a_vague_budget():
    """Trivial outputs get the classes right, so that the budgets alone must tell them from attention."""
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    assert not np.isfinite(p.truth.tensors["lse"]).all()
    assert refused(p, budget("lse", "max_abs", limit=50.0))
    assert refused(p, budget("lse", "max_abs", limit=1e-3)) == []


def test_what_cannot_be_evaluated_is_refused():
    p = problem()
    (reason,) = refused(p, budget("o", "rmse", "ratio_to_baseline", 2.0))
    assert "cannot be evaluated: no rmse of a baseline" in reason
    assert "cannot be evaluated" in refused(p, budget("o", "rsme"))[0]
    assert refused(p, budget("dq", "rmse")) == ["a budget is on dq, of which a forward has no truth"]


def test_no_query_nothing_to_try():
    o = np.zeros((1, 0, 2, 8))
    given_case, _, truth = plain(o, o, budgets=(budget("o", "rmse"),))
    assert admit(given_case, truth, {}) == []


def test_exp2():
    x = np.linspace(-4, 0, 999)
    truth = Truth({"y": np.exp2(x)})
    held = {"operation": "exp2", "id": "exp2"}
    assert admit(case(**held, budgets=(budget("y", "max_relative", limit=1e-3),)), truth, {}) == []
    assert admit(case(**held, budgets=(budget("y", "max_relative", limit=1e3),)), truth, {})
    assert admit(case(**held, budgets=(budget("y", "special_mismatches", limit=0.0),)), truth, {})


def test_large_tensors_are_thinned(monkeypatch):
    from fa4verify.judgement import vacuity

    p = problem(causal=True, seqlen_q=64, seqlen_k=64)
    budgets = (budget("o", "rmse", "expected_error", 3.0), budget("lse", "max_abs", limit=1e-3))
    monkeypatch.setattr(vacuity, "ELEMENTS", 256)
    assert refused(p, *budgets) == []
    assert vacuity._part(p.truth, "o").tensors["o"].shape == (1, 8, 2, 16)
    assert refused(p, budget("o", "max_abs", limit=100.0))


def test_the_same_answer_twice():
    p = problem()
    assert refused(p, budget("o", "rmse", limit=0.2)) == refused(p, budget("o", "rmse", limit=0.2))


def test_what_is_refused_would_indeed_have_passed():
    """The judge agrees: zeros pass the vague case and fail the honest one."""
    p = problem()
    zeros = replace(p.output, o=to_torch(np.zeros(p.truth.tensors["o"].shape), "bf16"))
    for limit, outcome in [(1.0, "PASS"), (1e-3, "FAIL")]:
        held = p.with_case(budgets=(budget("o", "rmse", limit=limit),))
        verdict = judge(held.case, measure(held.case, zeros, held.truth), {}, zeros, held.truth)
        assert verdict.outcome == outcome
        assert bool(admit(held.case, held.truth, {})) == (outcome == "PASS")
    assert Output().o is None
