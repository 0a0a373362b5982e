"""Hints: each for its wrong twin, none for the right one and none for mere noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.judgement import judge, measure
from fa4verify.judgement.diagnosis import diagnose
from fa4verify.vocabulary import Output
from tests.judgement.attention import budget, problem

MISMATCH = "numerator/denominator mismatch: LSE is right, but "


def hints(p, output) -> list[str]:
    return [hint for _, hint in diagnose(p.case, output, p.truth)]


CLEAN = {
    "bf16": lambda: problem(),
    "fp16": lambda: problem("fp16"),
    "causal with empty rows": lambda: problem(causal=True, seqlen_q=40, seqlen_k=32),
    "uniform": lambda: problem(q_scale=0.0),
    "peaked": lambda: problem(q_scale=30.0),
    "ones in V": lambda: problem(v=np.ones((1, 256, 2, 16))),
    "zeros in V": lambda: problem(v=np.zeros((1, 256, 2, 16))),
    "one query": lambda: problem(seqlen_q=1),
    "equal heads": lambda: problem(v=np.random.default_rng(0).standard_normal((1, 256, 1, 16)), q_scale=0.0),
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_correct_output_gets_no_hint(name):
    p = CLEAN[name]()
    assert hints(p, p.output) == []


def test_mere_noise_gets_no_hint():
    p = problem(heads=4)
    generator = np.random.default_rng(1)
    o, lse = p.truth.tensors["o"], p.truth.tensors["lse"]
    noisy = p.with_o(o + 0.5 * generator.standard_normal(o.shape))
    noisy = replace(noisy, lse=torch.from_numpy((lse + generator.standard_normal(lse.shape)).astype(np.float32)))
    assert hints(p, noisy) == []


def test_lse_in_base_2():
    """C14: the slope against the truth is log2 e."""
    p = problem()
    (hint,) = hints(p, p.with_lse(p.truth.tensors["lse"] / np.log(2)))
    assert hint == "LSE is in base 2 (slope 1.4427 against the truth; log2 e is 1.4427)"


def test_lse_in_base_2_with_empty_rows_and_fa4s_error():
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    (hint,) = hints(p, p.with_lse(p.truth.tensors["lse"] / np.log(2) + 8.5e-5))
    assert "base 2" in hint


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda lse, _: lse * 4.0, "LSE is missing the scale (slope 4.0000"),
        (lambda lse, row_max: lse + row_max * 3.0, "LSE is missing the scale on the row maximum"),
        (lambda lse, row_max: lse - row_max, "LSE lacks the row maximum"),
    ],
)
def test_lse_without_scale_or_maximum(wrong, words):
    p = problem()  # head dim 16: a scale of 1/4
    (hint,) = hints(p, p.with_lse(wrong(p.truth.tensors["lse"], p.truth.moments["row_max"])))
    assert hint.startswith(words)


def test_lse_of_zeros():
    p = problem(q_scale=100.0)  # one key dominates: 0 is also the logarithm of the row sum
    assert hints(p, p.with_lse(0 * p.truth.tensors["lse"])) == ["LSE is zero everywhere"]


def test_a_near_miss_of_base_2_is_no_evidence():
    """A twentieth of the error left over: ten times what a kernel's own error would leave."""
    p = problem()
    lse = p.truth.tensors["lse"] / np.log(2)
    lse += 0.05 * (lse - p.truth.tensors["lse"])
    assert hints(p, p.with_lse(lse)) == []


def test_an_lse_that_is_off_by_a_constant_is_none_of_these():
    p = problem()
    assert hints(p, p.with_lse(p.truth.tensors["lse"] + 0.1)) == []


def test_zeroed_rows():
    """B12, C3: rows with valid keys come out as zero; rows without keys are meant to."""
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    o = p.truth.tensors["o"].copy()
    o[0, 20:25, 1] = 0.0
    (hint,) = hints(p, p.with_o(o))
    assert hint == "5 of 80 rows looked at are zero although they have valid keys"


def test_clamped_numerator():
    """B5: V = 1, the dominant P clamped at 448 of 2^11.9, the row sum not: O = 0.117 while LSE is right."""
    p = problem(v=np.ones((1, 256, 2, 16)))
    o = p.truth.tensors["o"].copy()
    o[0, 4:9] *= 0.117
    (hint,) = hints(p, p.with_o(o))
    assert hint.startswith(MISMATCH + "10 rows of O are a multiple of the truth (worst 0.117")


def test_a_wrong_lse_acquits_the_denominator():
    p = problem(v=np.ones((1, 256, 2, 16)))
    o = p.truth.tensors["o"].copy()
    o[0, 4:9] *= 0.117
    output = replace(p.with_o(o), lse=p.output.lse + 2.0)
    assert hints(p, output) == []


@pytest.mark.parametrize("factor", [0.5, 1.0625, -1.0])
def test_one_factor_for_all_of_o(factor):
    p = problem()
    (hint,) = hints(p, p.with_o(factor * p.truth.tensors["o"]))
    assert hint.startswith(MISMATCH + "O is ")
    assert float(hint.removeprefix(MISMATCH).split()[2]) == pytest.approx(factor, rel=1e-3)


def test_a_mismatch_is_a_finding_and_no_hint():
    p = problem(v=np.ones((1, 256, 2, 16))).with_case(budgets=(budget("o", "gain_error", limit=1e-3),))
    output = p.with_o(0.637 * p.truth.tensors["o"])
    verdict = judge(p.case, measure(p.case, output, p.truth), {}, output, p.truth)
    (found,) = (finding for finding in verdict.findings if finding.message.startswith(MISMATCH))
    assert (found.tensor, found.passed) == ("o", False)
    assert "O is 0.636719 times" in found.message


def test_clamped_p_are_counted():
    p = problem().with_case(budgets=(budget("o", "gain_error", limit=1e-3),))
    wrong = p.with_o(0.5 * p.truth.tensors["o"])
    per_row = np.zeros((1, 2, 20), np.int64)
    per_row[0, 1, 3] = 7
    output = replace(wrong, activity={"p_saturated": 9.0, "max_p": 4096.0}, activity_per_row={"p_saturated": per_row})
    verdict = judge(p.case, measure(p.case, output, p.truth), {}, output, p.truth)
    said = "hint: 9 P clamped: largest P 4096; most of them, 7, in row [0, 1, 3]"
    assert said in [finding.message for finding in verdict.findings]


def test_permuted_heads():
    p = problem(heads=6)
    order = [1, 2, 0, 3, 5, 4]
    (hint,) = hints(p, p.with_o(p.truth.tensors["o"][:, :, order]))
    assert hint == (
        "heads are permuted: 0 is the truth's 1, 1 is the truth's 2, 2 is the truth's 0, 4 is the truth's 5 and 1 more"
    )


def test_hints_come_with_a_failure_only():
    p = problem().with_case(budgets=(budget("lse", "max_abs", limit=1e-3),))
    for output, expected in [(p.output, False), (p.with_lse(p.truth.tensors["lse"] / np.log(2)), True)]:
        verdict = judge(p.case, measure(p.case, output, p.truth), {}, output, p.truth)
        found = [finding for finding in verdict.findings if finding.message.startswith("hint: ")]
        assert bool(found) == expected
        assert verdict.outcome == ("FAIL" if expected else "PASS")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_outputs_do_not_disturb(bad):
    p = problem(heads=3)
    o, lse = p.output.o.clone(), p.output.lse.clone()
    o[0, 3], lse[0, 1] = bad, bad
    assert hints(p, replace(p.output, o=o, lse=lse)) == []
    everything = Output(o=torch.full_like(o, bad), lse=torch.full_like(lse, bad))
    assert hints(p, everything) == []


def test_missing_or_misshapen_tensors_do_not_disturb():
    p = problem()
    assert hints(p, Output()) == []
    assert hints(p, Output(o=p.output.o[:, 1:], lse=p.output.lse[..., 1:])) == []


def test_large_outputs_are_thinned(monkeypatch):
    from fa4verify.judgement import diagnosis

    monkeypatch.setattr(diagnosis, "ELEMENTS", 320)
    p = problem()
    (hint,) = hints(p, p.with_o(0.5 * p.truth.tensors["o"]))
    assert hint.startswith(MISMATCH + "O is 0.5")
    zeros = p.with_o(round_to(0 * p.truth.tensors["o"], FORMATS["bf16"]))
    assert hints(p, zeros)[0].startswith("20 of 20 rows looked at are zero")
