"""Verdicts and their messages: a failure's message is the report."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4verify.judgement import checked, judge, measure
from fa4verify.vocabulary import Verdict
from tests.judgement.attention import budget, plain, problem

TWO = (budget("o", "relative_rmse", limit=8e-3), budget("lse", "max_abs", limit=1e-6))


def verdict_of(p, output=None, baseline=None, **changes) -> Verdict:
    p = p.with_case(**({"budgets": TWO} | changes))
    output = p.output if output is None else output
    metrics = measure(p.case, output, p.truth)
    baseline_metrics = {} if baseline is None else measure(p.case, baseline, p.truth)
    return judge(p.case, metrics, baseline_metrics, output, p.truth)


def test_pass_gives_a_finding_for_every_budget():
    verdict = verdict_of(problem())
    assert verdict.outcome == "PASS"
    assert [finding.budget for finding in verdict.findings] == ["o-relative_rmse", "lse-max_abs"]
    message = verdict.findings[0].message
    assert message.startswith("o relative_rmse 0.00")
    assert "<= 0.008 (absolute), 0.2" in message
    assert message.endswith("of the limit; budget o-relative_rmse: a test")
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_a_failure_says_value_limit_place_and_bits():
    p = problem()
    got = p.output.o.double().numpy()
    got[0, 11, 1, 3] = 2.5
    verdict = verdict_of(p, p.with_o(got), budgets=(budget("o", "max_abs", limit=0.01), *TWO))
    assert verdict.outcome == "FAIL"
    finding = verdict.findings[0]
    want = p.truth.tensors["o"][0, 11, 1, 3]
    assert finding.where == (0, 11, 1, 3)
    assert finding.value == abs(2.5 - want)
    assert finding.limit == 0.01
    assert not finding.passed
    assert "> 0.01 (absolute)" in finding.message
    assert f"at [0, 11, 1, 3] got 2.5 (0x1.4000000000000p+1), want {want:.9g} ({float(want).hex()})" in finding.message
    assert " ulp; budget o-max_abs: a test" in finding.message
    assert any(other.passed for other in verdict.findings)  # what held is still listed


def test_a_failing_row_shows_its_worst_element():
    p = problem()
    got = p.output.o.double().numpy()
    got[0, 5, 0] *= 1.5
    got[0, 5, 0, 7] = -9.0
    finding = verdict_of(p, p.with_o(got), budgets=(budget("o", "worst_row_relative_l2", limit=0.05),)).findings[0]
    assert finding.where == (0, 5, 0)
    assert "at [0, 5, 0, 7] got -9 (" in finding.message


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_non_finite_element_fails_whatever_the_budgets_say(bad):
    p = problem()
    o = p.output.o.clone()
    o[0, 0, 0, 0] = bad
    verdict = verdict_of(p, replace(p.output, o=o), budgets=(budget("o", "rmse", limit=1e9),))
    assert verdict.outcome == "FAIL"
    assert verdict.findings[0].metric == "nonfinite_mismatches"
    assert verdict.findings[0].value == 1.0


def test_lse_of_empty_rows():
    """C1: -inf by declaration; +inf and a finite sentinel fail with the table in words."""
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    assert verdict_of(p).outcome == "PASS"
    for bad, words in [(math.inf, "+inf"), (-1e30, "finite"), (math.nan, "nan")]:
        lse = p.output.lse.clone()
        lse[lse == -math.inf] = bad
        verdict = verdict_of(p, replace(p.output, lse=lse))
        assert verdict.outcome == "FAIL"
        assert verdict.findings[0].message == f"lse: 16 elements expected -inf, got {words}"


def test_rows_without_a_key_hold_zero():
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    got = p.output.o.double().numpy()
    got[0, :2] = 1e-7
    verdict = verdict_of(p, p.with_o(got))
    assert verdict.outcome == "FAIL"
    assert verdict.findings[0].message == "o: 4 rows without a key are not exactly 0"


def test_all_rows_masked():
    """Nothing finite in LSE, zeros in O: classes and exact equality decide, and must be able to fail."""
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    part = {name: values[:, :8] if name == "o" else values[..., :8] for name, values in p.truth.tensors.items()}
    masked = replace(p, truth=replace(p.truth, tensors=part, moments={}))
    right = replace(p.output, o=p.output.o[:, :8], lse=p.output.lse[..., :8])
    verdict = verdict_of(masked, right)
    assert verdict.outcome == "PASS"
    assert "16 elements equal in class and value" in verdict.findings[1].message
    assert verdict_of(masked, replace(right, lse=torch.zeros(1, 2, 8))).outcome == "FAIL"
    assert verdict_of(masked, replace(right, o=right.o + 1)).outcome == "FAIL"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"o": "shape"}, "o has shape (1, 63, 2, 16), expected (1, 64, 2, 16)"),
        ({"o": "dtype"}, "o has dtype torch.float16, expected torch.bfloat16"),
        ({"lse": "dtype"}, "lse has dtype torch.float64, expected torch.float32"),
    ],
)
def test_wrong_shapes_and_dtypes_fail(change, words):
    p = problem()
    changed = {
        ("o", "shape"): lambda: p.output.o[:, 1:],
        ("o", "dtype"): lambda: p.output.o.half(),
        ("lse", "dtype"): lambda: p.output.lse.double(),
    }
    ((tensor, what),) = change.items()
    verdict = verdict_of(p, replace(p.output, **{tensor: changed[tensor, what]()}))
    assert verdict.outcome == "FAIL"
    assert verdict.findings[0].message == words


def test_fp32_is_right_where_the_case_asks_for_it():
    p = problem()
    wide = replace(p.output, o=p.output.o.float())
    assert verdict_of(p, wide, options={"o_dtype": "fp32"}).outcome == "PASS"
    for output, options in ((wide, {}), (wide, {"grad_dtype": "fp32"}), (p.output, {"o_dtype": "fp32"})):
        verdict = verdict_of(p, output, options=options)
        assert verdict.outcome == "FAIL"
        assert verdict.findings[0].message.startswith("o has dtype ")


def test_an_empty_case_judges_nothing():
    verdict = verdict_of(problem(), budgets=())
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.findings[0].message == "nothing was judged: the case has no budget"


def test_a_feature_that_was_never_active():
    """G9: a sparsity test in which nothing is skipped proves nothing."""
    p = problem()
    requires = ("rescales_skipped", "emulated_exp2")
    idle = replace(p.output, activity={"rescales_skipped": 0.0, "emulated_exp2": 5.0})
    verdict = verdict_of(p, idle, requires=requires)
    assert verdict.outcome == "INCONCLUSIVE"
    assert verdict.findings[0].message.startswith("never active: rescales_skipped = 0 (")
    busy = replace(p.output, activity={"rescales_skipped": 3.0, "emulated_exp2": 5.0})
    assert verdict_of(p, busy, requires=requires).outcome == "PASS"


def test_an_absent_counter_decides_nothing_and_is_listed():
    p = problem().with_case(budgets=TWO, requires=("rescales_skipped",))
    assert verdict_of(p, requires=("rescales_skipped",)).outcome == "PASS"
    assert checked(p.case, p.output, p.truth) == {
        "o": "checked",
        "lse": "checked",
        "activity.rescales_skipped": "the kernel does not count it",
    }


def test_every_tensor_is_listed():
    p = problem().with_case(budgets=TWO[:1])
    assert checked(p.case, p.output, p.truth)["lse"] == "no budget: only the classes of its values were compared"
    assert checked(p.case, replace(p.output, lse=None), p.truth)["lse"] == "the kernel returned none"
    without = replace(p.truth, tensors={"o": p.truth.tensors["o"]})
    assert checked(p.case, p.output, without)["lse"] == "the reference has no truth for it"


def test_a_kernel_may_return_o_alone():
    p = problem()
    alone = replace(p.output, lse=None)
    verdict = verdict_of(p, alone)
    assert verdict.outcome == "PASS"
    assert {finding.tensor for finding in verdict.findings} == {"o"}
    assert checked(p.case, alone, p.truth)["lse"] == "the kernel returned none"
    verdict = verdict_of(p, alone, budgets=TWO[1:])
    assert verdict.outcome == "INCONCLUSIVE"
    assert "no budget is on another tensor" in verdict.findings[0].message


def test_a_blunt_truth_is_inconclusive():
    p = problem()
    blunt = replace(p, truth=replace(p.truth, radius={"lse": 2e-7}))
    sharp = replace(p, truth=replace(p.truth, radius={"lse": 1e-12}))
    assert verdict_of(sharp).outcome == "PASS"
    verdict = verdict_of(blunt)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "the truth is certain to 2e-07 only" in verdict.findings[0].message


def test_a_failure_outweighs_what_cannot_be_said():
    p = problem()
    verdict = verdict_of(p, p.with_o(0 * p.truth.tensors["o"]), requires=("rescales_skipped",))
    assert verdict.outcome == "FAIL"


def test_the_baseline_is_measured_by_the_same_function():
    p = problem(seqlen_k=1024)
    coarse = problem(seqlen_k=1024, p_error=3.0)
    ratio = (budget("o", "rmse", "ratio_to_baseline", 1.0),)
    assert verdict_of(p, p.output, coarse.output, budgets=ratio).outcome == "PASS"
    assert verdict_of(p, coarse.output, p.output, budgets=ratio).outcome == "FAIL"
    same = verdict_of(p, p.output, p.output, budgets=ratio)
    assert same.outcome == "PASS"
    assert same.findings[0].value == same.findings[0].limit


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)), st.booleans())
def test_the_order_of_budgets_does_not_matter(order, broken):
    o = np.linspace(1, 2, 32).reshape(1, 4, 2, 4)
    limits = [budget("o", m, limit=1e-2) for m in ("rmse", "max_abs", "relative_rmse", "worst_row_relative_l2")]
    shuffled = tuple(limits[i] for i in order)
    given_case, output, truth = plain(o, o + (0.05 if broken else 0.0), budgets=shuffled)
    verdict = judge(given_case, measure(given_case, output, truth), {}, output, truth)
    assert verdict.outcome == ("FAIL" if broken else "PASS")
    named = {finding.budget for finding in verdict.findings if finding.budget}
    assert named == {limit.name for limit in limits}
