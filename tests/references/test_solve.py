"""solve: the one door of the room."""

import msgspec
import numpy as np
import pytest
import torch

from fa4verify import references
from fa4verify.references.problem import Problem, stored, widen
from fa4verify.vocabulary import Budget, Inputs

from .problems import attention_case, draw

MODEL = Budget("model", "o", "rmse", "expected_error", 2.0, "here")


def test_forward_gives_tensors_radius_rows_and_provenance():
    features = {"lengths": (40, 50), "causal": True, "learnable_sink": True, "dims": (16, 8)}
    truth = references.solve(attention_case(**features), draw(**features))
    assert {name: values.shape for name, values in truth.tensors.items()} == {"o": (1, 40, 4, 8), "lse": (1, 4, 40)}
    assert set(truth.radius) == {"o", "lse"}
    assert truth.sampled_rows.shape[1] == 3
    assert set(truth.moments) == {"top_key", "top_weight"}
    assert all(isinstance(value, str) for value in truth.provenance.values())


def test_moments_come_only_with_a_budget_that_needs_them():
    features = {"lengths": (5, 5)}
    absolute = msgspec.structs.replace(MODEL, kind="absolute")
    without = references.solve(attention_case(budgets=(absolute,), **features), draw(**features))
    assert set(without.moments) == {"top_key", "top_weight"}
    truth = references.solve(attention_case(budgets=(absolute, MODEL), **features), draw(**features))
    assert {name: values.shape for name, values in truth.moments.items()} == {
        "spread": (1, 5, 4, 3), "magnitude": (1, 5, 4, 3), "row_max": (1, 4, 5), "top_weight": (1, 4, 5),
        "top_key": (1, 4, 5),
    }  # fmt: skip


def test_exp2_is_dispatched():
    case = msgspec.structs.replace(attention_case(), operation="exp2")
    assert references.solve(case, Inputs({"x": torch.tensor([-1.0])})).tensors["y"].tolist() == [0.5]


def test_the_sink_is_read_only_where_the_case_has_one():
    inputs = draw(learnable_sink=True)
    with_sink = references.solve(attention_case(learnable_sink=True), inputs)
    without = references.solve(attention_case(), inputs)
    assert (with_sink.tensors["lse"] > without.tensors["lse"]).all()


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="3 query heads are no multiple of 2 key heads"):
        Problem.of(attention_case(), draw(heads=(3, 2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_code_is_widened_exactly(dtype):
    codes = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(2, -1).mT  # not contiguous
    found = widen(stored(codes))
    np.testing.assert_array_equal(found, codes.double().numpy())
    into = np.empty_like(found)
    assert widen(stored(codes), into) is into
    np.testing.assert_array_equal(into, found)
