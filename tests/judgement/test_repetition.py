"""Runs compared bit for bit: what is counted, where it differs, and what N equal runs prove."""

import math

import numpy as np
import pytest
import torch

from fa4verify.judgement.repetition import measure, observe, order_dependent, rate_bound
from fa4verify.vocabulary import Case, Distribution, Output, Shape, Truth

CASE = Case("rep", "repeat", "any", Distribution("normal"), shape=Shape(1, 2, 4, 2, 2, 2, 2), runs=4)


def outputs(*changes, dtype=torch.bfloat16):
    """Return a dq for each argument, each a dict from index to the value put there."""
    for change in changes:
        dq = torch.arange(8, dtype=torch.float32).reshape(1, 2, 2, 2)
        for index, value in change.items():
            dq[index] = value
        yield Output(dq=dq.to(dtype))


def metrics(*changes, **arguments):
    return measure(CASE, observe(outputs(*changes)), **arguments)["dq"]


def test_equal_runs():
    found = metrics({}, {}, {})
    assert found.values["distinct"] == 1
    assert found.values["differing_share"] == found.values["max_difference"] == 0
    assert found.where == {}


def test_what_differs_is_counted_and_found():
    found = metrics({}, {(0, 1, 0, 1): 8.0, (0, 1, 1, 1): 7.5}, {}, {(0, 1, 1, 1): 7.5})
    assert found.values["distinct"] == 3
    assert found.values["max_difference"] == 3.0
    assert found.values["differing_share"] == (2 + 0 + 1) / (3 * 8)
    assert found.where == {"distinct": (0, 1, 0, 1), "max_difference": (0, 1, 0, 1)}
    assert found.values["rate_bound"] == rate_bound(2, 4)


def test_the_first_difference_holds_both_values():
    seen = observe(outputs({}, {}, {(0, 0, 0, 0): 0.5, (0, 0, 0, 1): 2.0})).tensors["dq"]
    assert seen.difference.run == 2
    assert seen.difference.index == (0, 0, 0, 0)
    assert (seen.difference.first, seen.difference.other) == (0.0, 0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bits_are_compared_and_not_values(dtype):
    """-0 is not +0; NaN is itself, and not a number; neither breaks the largest difference."""
    zero = observe(outputs({}, {(0, 0, 0, 0): -0.0}, dtype=dtype)).tensors["dq"]
    assert (zero.distinct, zero.largest, zero.difference.index) == (2, 0.0, (0, 0, 0, 0))
    nan = {(0, 0, 0, 0): math.nan}
    assert observe(outputs(nan, nan, dtype=dtype)).tensors["dq"].distinct == 1
    seen = observe(outputs(nan, {}, dtype=dtype)).tensors["dq"]
    assert (seen.distinct, seen.largest) == (2, 0.0)
    seen = observe(outputs({(0, 0, 0, 0): math.inf}, {(0, 1, 1, 1): 9.0}, dtype=dtype)).tensors["dq"]
    assert (seen.distinct, seen.differing[-1], seen.largest) == (2, 2, 2.0)


def test_a_kernel_that_returns_the_same_memory_is_not_compared_with_itself():
    memory = torch.zeros(1, 2, 2, 2, dtype=torch.bfloat16)

    def runs():
        for value in (0.0, 0.0, 1.0, 0.0):
            memory[0, 1, 1, 1] = value
            yield Output(dq=memory)

    seen = observe(runs()).tensors["dq"]
    assert (seen.distinct, seen.strays, seen.differing) == (2, 1, [0, 0, 1, 0])
    assert (seen.difference.first, seen.difference.other) == (0.0, 1.0)


def test_a_run_that_differs_in_layout_or_dtype_alone():
    """Strides do not count; another dtype is not the same bits, whatever the values."""
    one = torch.arange(8, dtype=torch.float32).reshape(1, 2, 2, 2)
    turned = one.transpose(1, 2).contiguous().transpose(1, 2)
    assert turned.stride() != one.stride()
    assert observe([Output(dq=one), Output(dq=turned)]).tensors["dq"].distinct == 1
    assert observe([Output(dq=turned), Output(dq=one + 1)]).tensors["dq"].differing == [0, 8]


def test_one_bit_of_the_last_element_is_seen():
    first = torch.zeros(1, 7, 3, 5, dtype=torch.bfloat16)
    last = first.clone()
    last[0, 6, 2, 4] = 2.0**-133  # the smallest bf16
    found = observe([Output(dk=first), Output(dk=last)]).tensors["dk"]
    assert found.distinct == 2
    assert found.difference.index == (0, 6, 2, 4)


def test_a_tensor_without_elements_and_one_that_is_not_there():
    empty = Output(dq=torch.zeros(1, 0, 2, 2, dtype=torch.bfloat16))
    found = measure(CASE, observe([empty, empty]))
    assert found["dq"].values["distinct"] == 1
    assert found["dq"].values["differing_share"] == 0
    assert set(found) == {"dq"}


def test_what_no_difference_in_n_runs_proves():
    assert rate_bound(0, 20) == pytest.approx(1 - 0.05 ** (1 / 20), rel=1e-12)
    assert rate_bound(0, 200) == pytest.approx(0.014867, abs=1e-6)  # "p < 1.5 % at 95 %"
    assert rate_bound(3, 3) == 1.0


@pytest.mark.parametrize(("strays", "runs"), [(0, 5), (1, 20), (7, 20), (49, 50)])
def test_the_bound_is_the_rate_at_which_so_few_strays_have_a_chance_of_one_in_twenty(strays, runs):
    """Clopper-Pearson's definition, by the binomial sum."""
    p = rate_bound(strays, runs)
    chance = sum(math.comb(runs, k) * p**k * (1 - p) ** (runs - k) for k in range(strays + 1))
    assert chance == pytest.approx(0.05, rel=1e-9)


def test_which_tensors_an_order_can_reach():
    assert order_dependent(CASE) == ("dq",)
    grouped = Case("rep", "repeat", "any", Distribution("normal"), shape=Shape(1, 2, 4, 6, 2, 2, 2))
    assert order_dependent(grouped) == ("dq", "dk", "dv")


def test_the_twin_is_counted_where_an_order_matters():
    seen = observe([Output(dq=torch.ones(1, 2, 2, 2), dk=torch.ones(1, 4, 2, 2))])
    twin = observe([Output(dq=torch.full((1, 2, 2, 2), float(i)), dk=torch.ones(1, 4, 2, 2)) for i in range(3)])
    found = measure(CASE, seen, twin)
    assert found["dq"].values["distinct_shuffled"] == 3
    assert "distinct_shuffled" not in found["dk"].values


def test_rmse_over_orders_and_in_the_deterministic_one():
    truth = Truth({"dq": np.arange(8.0).reshape(1, 2, 2, 2)})
    places = [(0, 0, 0, 0), (0, 0, 0, 1)]
    runs = observe(outputs({places[0]: 1.0}, {places[1]: 3.0}, {}), truth)
    ordered = observe(outputs({places[0]: 0.5}), truth)
    values = measure(CASE, runs, None, ordered)["dq"].values
    assert values["rmse_low"] == 0
    assert values["rmse_high"] == math.sqrt(4 / 8)
    assert values["rmse_deterministic"] == math.sqrt(0.25 / 8)
    assert values["orders_better"] == 1 / 3
