"""FlashAttention's own rule, against a transcription of its test, and what it lets through."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.judgement import fa_rule, layout
from fa4verify.vocabulary import Truth
from tests.judgement.attention import TORCH, plain, problem, to_torch


def as_flash_attention_tests_it(out, out_pt, out_ref, softcap):
    """tests/cute/test_flash_attn.py, in the input dtype throughout."""
    rtol = 2 if softcap == 0.0 else 3
    fwd_atol = 2 * (out_ref + 0.3 - 0.3 - out_ref).abs().max().item()
    value = (out - out_ref).abs().max().item()
    limit = rtol * (out_pt - out_ref).abs().max().item() + fwd_atol
    return value, limit, value <= limit


@pytest.mark.parametrize("softcap", [0.0, 15.0])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("error", [0.0, 0.01, 0.1])
def test_it_decides_as_flash_attention_does(dtype, softcap, error, monkeypatch):
    monkeypatch.setattr(layout, "CHUNK", 100)
    p = problem(dtype).with_case(softcap=softcap)
    o = p.truth.tensors["o"]
    output = p.with_o(o + error)
    pt = p.with_o(o * (1 + 2.0**-7))
    ref = to_torch(round_to(o, FORMATS[dtype]), dtype)
    value, limit, passes = as_flash_attention_tests_it(output.o, pt.o, ref, softcap)
    assert fa_rule(p.case, output, p.truth, pt) == {
        "fa_rule_value": value,
        "fa_rule_limit": limit,
        "fa_rule_passes": float(passes),
        "fa_rule_nan": 0.0,
    }


@pytest.mark.parametrize(
    ("where", "bad", "passes", "absent"),
    [
        ("out", math.nan, 0.0, "fa_rule_value"),
        ("out", math.inf, 0.0, "fa_rule_value"),
        ("pt", math.inf, 1.0, "fa_rule_limit"),  # an infinite limit: anything finite passes
        ("pt", math.nan, 0.0, "fa_rule_limit"),
    ],
)
def test_non_finite_values_decide_as_they_do_there(where, bad, passes, absent):
    p = problem()
    outputs = {"out": p.output.o.clone(), "pt": p.output.o.clone()}
    outputs[where][0, 3, 1, 2] = bad
    ref = to_torch(round_to(p.truth.tensors["o"], FORMATS["bf16"]), "bf16")
    *_, theirs = as_flash_attention_tests_it(outputs["out"], outputs["pt"], ref, 0.0)
    found = fa_rule(p.case, replace(p.output, o=outputs["out"]), p.truth, replace(p.output, o=outputs["pt"]))
    assert found["fa_rule_passes"] == passes == float(theirs)
    assert absent not in found
    assert found["fa_rule_nan"] == (where == "out" and math.isnan(bad))
    assert all(math.isfinite(value) for value in found.values())


def test_one_outlier_in_the_baseline_is_everybodys_budget():
    """One bad element of pt, and O may be off by a tenth of its size everywhere."""
    p = problem(seqlen_q=128, seqlen_k=1024)
    o = p.truth.tensors["o"]
    bad = o.copy()
    bad[0, 0, 0, 0] += 0.05
    output = p.with_o(o + 0.1 * np.sqrt(np.mean(o * o)))
    assert fa_rule(p.case, output, p.truth, p.with_o(bad))["fa_rule_passes"] == 1.0
    assert fa_rule(p.case, output, p.truth, p.output)["fa_rule_passes"] == 0.0


def test_small_outputs_pass_as_zeros():
    """G2: the proxy is the rounding of 0.3, 2^-10 in bf16 and doubled, whatever the size of O."""
    rng = np.random.default_rng(0)
    o = 1e-3 * rng.uniform(-1, 1, (1, 64, 2, 16))
    given_case, output, truth = plain(o, np.zeros_like(o))
    _, pt, _ = plain(o, round_to(o, FORMATS["bf16"]))
    assert fa_rule(given_case, output, truth, pt)["fa_rule_passes"] == 1.0


def test_nothing_to_compare():
    o = np.zeros((1, 0, 1, 8))
    given_case, output, truth = plain(o, o)
    assert fa_rule(given_case, output, truth, output) == {}
    p = problem()
    assert fa_rule(p.case, p.output, p.truth, replace(p.output, o=p.output.o[:, 1:])) == {}
    assert fa_rule(p.case, replace(p.output, o=None), p.truth, p.output) == {}


def test_dtypes_are_those_of_the_case():
    """A float32 output is judged after the cast that a caller in bf16 would see."""
    p = problem()
    wide = replace(p.output, o=p.output.o.float() * (1 + 2.0**-20))
    assert fa_rule(p.case, wide, Truth({"o": p.output.o.double().numpy()}), p.output)["fa_rule_value"] == 0.0
    assert TORCH[p.case.dtype] is torch.bfloat16
