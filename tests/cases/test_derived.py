"""Cases made from cases: the same problem on another kernel, the last rows of a problem."""

import msgspec
import numpy as np
import pytest
import torch

from fa4verify.cases import draw, last_rows, load_suite, substitute_kernel
from fa4verify.vocabulary import BITS, Budget
from tests.cases.build import attention, case


def budget(limit, name="b", metric="rmse"):
    return Budget(name, "o", metric, "absolute", limit, "a test")


def test_substitution_drops_options_and_counters_and_keeps_inputs():
    first = case("fa3_outlier", fields={"options": {"degree": 2}, "budgets": (budget(1.0),), "requires": ("max_p",)})
    (other,) = substitute_kernel([first], "mine:attention")
    assert (other.kernel, other.options, other.requires, other.substituted) == ("mine:attention", {}, (), True)
    assert other.id == "fwd-mine:attention-bf16-b1h2q64k256d64-fa3_outlier-s0"
    assert other.budgets == first.budgets
    assert torch.equal(draw(first).tensors["q"], draw(other).tensors["q"])


def test_a_kernel_in_its_own_place_keeps_its_options_and_counters():
    first = case("fa3_outlier", fields={"options": {"degree": 2}, "budgets": (budget(1.0),), "requires": ("max_p",)})
    (other,) = substitute_kernel([first], first.kernel)
    assert (other.options, other.requires, other.substituted) == ({"degree": 2}, ("max_p",), True)


def test_equal_problems_merge_to_the_loosest_limits():
    first = case(fields={"budgets": (budget(1.0), budget(5.0, "c", "max_abs")), "requires": ("max_p",)})
    second = msgspec.structs.replace(
        first, kernel="k", budgets=(budget(2.0, "d"),), requires=("max_p",), baseline="standard", timeout_s=999.0
    )
    third = msgspec.structs.replace(first, seed=1)
    merged, alone = substitute_kernel([first, second, third], "k")
    assert [(b.name, b.limit) for b in merged.budgets] == [("d", 2.0), ("c", 5.0)]
    assert merged.requires == ("max_p",)
    assert (merged.baseline, merged.timeout_s) == ("standard", 999.0)
    assert alone.budgets == first.budgets


def test_equal_bits_are_promised_of_one_kernel_only():
    bits, ratio = budget(0.0, "bits", BITS), msgspec.structs.replace(budget(1.0), kind="ratio_to_baseline")
    first = case(fields={"budgets": (bits, budget(1.0)), "baseline": "fa4-sm90"})
    (own,) = substitute_kernel([first], first.kernel)
    (other,) = substitute_kernel([first], "k")
    assert (own.budgets, own.baseline) == (first.budgets, "fa4-sm90")
    assert (other.budgets, other.baseline) == ((budget(1.0),), None)
    (compared,) = substitute_kernel([msgspec.structs.replace(first, budgets=(bits, ratio))], "k")
    assert (compared.budgets, compared.baseline) == ((ratio,), "fa4-sm90")


def test_substituting_a_whole_suite_leaves_distinct_ids():
    cases = load_suite("gate").cases
    merged = substitute_kernel(cases, "standard")
    assert len({case.id for case in merged}) == len(merged) < len(cases)
    assert {case.kernel for case in merged} == {"standard"}


@pytest.mark.parametrize("count", [1, 5, 64, 1000])
def test_last_rows_are_the_same_problem(count):
    a_case = case(sizes={"batch": 2, "heads": 4, "heads_kv": 2}, fields={"causal": True, "learnable_sink": True})
    inputs = draw(a_case)
    small, part = last_rows(a_case, inputs, count)
    kept = min(count, 64)
    assert (small.shape.batch, small.shape.seqlen_q, small.shape.seqlen_k) == (1, kept, 256)
    assert small.id == f"x-last{kept}"
    assert torch.equal(part.tensors["learnable_sink"], inputs.tensors["learnable_sink"])
    whole = {name: tensor.double().numpy() for name, tensor in inputs.tensors.items()}
    rows = {name: tensor.double().numpy() for name, tensor in part.tensors.items()}
    o, lse = attention(a_case, whole)
    small_o, small_lse = attention(small, rows)
    assert np.array_equal(small_o, o[:1, 64 - kept :])
    assert np.array_equal(small_lse, lse[:1, :, 64 - kept :])


def test_last_rows_of_exp2_are_its_last_arguments():
    a_case = case("fractions", operation="exp2", stride=4096)
    inputs = draw(a_case)
    _, part = last_rows(a_case, inputs, 7)
    assert torch.equal(part.tensors["x"], inputs.tensors["x"][-7:])
