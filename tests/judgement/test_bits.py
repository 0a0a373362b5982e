"""Equal bits with a baseline: what counts, what does not, and that nothing trivial has them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fa4verify.judgement import admit, judge, measure, rounded
from fa4verify.judgement.bits import unlike
from fa4verify.vocabulary import BITS, OF_BITS, Output
from tests.judgement.attention import budget, problem

SAME = budget("o", BITS, limit=0.0)


def flipped(o: torch.Tensor, *index: int) -> torch.Tensor:
    """Return O with the last bit of one element turned."""
    bits = o.clone().view(torch.int16)
    bits[index] ^= 1
    return bits.view(o.dtype)


def test_one_bit_is_seen_and_found():
    p = problem().with_case(baseline="standard", budgets=(SAME,))
    where = tuple(size - 1 for size in p.output.o.shape)
    changed = replace(p.output, o=flipped(p.output.o, *where))
    for output, expected in ((p.output, 0.0), (changed, 1.0)):
        metrics = measure(p.case, output, p.truth, baseline=p.output)
        assert metrics["o"].values[BITS] == expected
        assert judge(p.case, metrics, {}, output, p.truth).outcome == ("FAIL" if expected else "PASS")
    assert metrics["o"].where[BITS] == where


@pytest.mark.parametrize(
    ("got", "want", "differing"),
    [
        ([0.0, 1.0], [-0.0, 1.0], 1),
        ([float("nan"), 1.0], [float("nan"), 1.0], 0),
        ([float("nan"), 1.0], [float("inf"), 1.0], 1),
        ([float("inf"), -float("inf")], [float("inf"), float("inf")], 1),
    ],
)
def test_signs_of_zero_and_classes_count_but_payloads_of_nan_do_not(got, want, differing):
    expected = Output(o=torch.tensor(want, dtype=torch.float32))
    assert unlike("o", torch.tensor(got, dtype=torch.float32), expected)[0][BITS] == differing
    payload = torch.tensor([0x7FC0, 0x7FFF], dtype=torch.int16).view(torch.bfloat16)
    assert unlike("o", payload.flip(0), Output(o=payload))[0] == dict(zip(OF_BITS, (0.0, 1.0, 0.0), strict=True))


def test_a_baseline_without_the_tensor_gives_no_metric_and_the_case_is_inconclusive():
    p = problem().with_case(baseline="standard", budgets=(SAME,))
    for baseline in (None, Output(lse=p.output.lse), Output(o=p.output.o[:, :1])):
        metrics = measure(p.case, p.output, p.truth, baseline=baseline)
        assert BITS not in metrics["o"].values
        assert judge(p.case, metrics, {}, p.output, p.truth).outcome == "INCONCLUSIVE"


def test_nothing_trivial_has_the_bits_of_a_baseline():
    p = problem().with_case(baseline="standard", budgets=(SAME,))
    assert admit(p.case, p.truth, {}, p.output) == []
    (reason,) = admit(p.case, p.truth, {})
    assert "cannot be evaluated" in reason
    vague = budget("o", BITS, limit=float(np.prod(p.output.o.shape)))
    assert len(admit(p.with_case(budgets=(vague,)).case, p.truth, {}, p.output)) == 4


def test_whoever_asks_for_the_bits_of_a_baseline_alone_is_not_told_its_classes():
    """FA4 gives -inf or NaN where the truth is another class; its emulation must too, and passes."""
    p = problem().with_case(baseline="standard", budgets=(SAME,))
    o = p.output.o.clone()
    o[0, 0, 0, 0] = float("nan")
    strange = replace(p.output, o=o)
    for baseline, outcome in ((strange, "PASS"), (p.output, "FAIL")):
        metrics = measure(p.case, strange, p.truth, baseline=baseline)
        assert metrics["o"].classes["finite>nan"] == 1
        assert judge(p.case, metrics, {}, strange, p.truth).outcome == outcome
    mixed = p.with_case(budgets=(SAME, budget("o", "rmse", limit=1e9)))
    metrics = measure(mixed.case, strange, p.truth, baseline=strange)
    assert judge(mixed.case, metrics, {}, strange, p.truth).outcome == "FAIL"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_rounded_truth_has_no_error_but_that_of_rounding(dtype):
    p = problem(dtype)
    o = rounded(p.case, p.truth)
    values = measure(p.case, o, p.truth)["o"].values
    assert (o.o.dtype, o.lse.dtype) == (p.output.o.dtype, torch.float32)
    assert values["rmse"] == values["floor_rmse"] > 0


@pytest.mark.parametrize(
    ("dtype", "got", "want", "steps"),
    [
        (torch.bfloat16, [1.0, 2.0], [1.0, 4.0], 1 << 7),  # an octave has 2^7 numbers
        (torch.float16, [0.0, -(2.0**-24)], [0.0, 2.0**-24], 2),  # through zero
        (torch.float32, [0.0, 1.0], [-0.0, 1.0], 0),
        (torch.float16, [65504.0, 1.0], [float("inf"), 1.0], 1),
        (torch.float32, [float("nan"), 3.0], [1.0, 3.0], 0),  # has no distance, but counts
    ],
)
def test_the_farthest_is_told_in_steps_of_the_format(dtype, got, want, steps):
    values, where = unlike("o", torch.tensor(got).to(dtype), Output(o=torch.tensor(want).to(dtype)))
    assert values["ulp_from_baseline"] == steps
    assert values["equal_to_baseline"] == 0.5
    assert where["ulp_from_baseline"] == ((1,) if steps > 1 else (0,))
