"""The repeat cases of the gate: the matrix is complete, and every row adds up eight KV tiles or more."""

from itertools import product

import pytest

from fa4verify.cases import load_suite

REPEATS = [case for case in load_suite("gate").cases if case.operation == "repeat"]
FLAGGED = [case for case in REPEATS if case.deterministic]
TILE = 128


def cell(case):
    shape = case.shape
    heads = "MHA" if shape.heads == shape.heads_kv else "MQA" if shape.heads_kv == 1 else "GQA"
    mask = "window" if case.window_size != (None, None) else "causal" if case.causal else "full"
    return case.kernel, heads, mask, shape.head_dim


def test_the_matrix_has_no_hole():
    wanted = set(product(("fa4-sm90", "fa4-sm100"), ("MHA", "GQA", "MQA"), ("full", "causal", "window"), (64, 128)))
    assert {cell(case) for case in FLAGGED} >= wanted
    assert {case.dtype for case in FLAGGED} == {"bf16", "fp16"}
    assert {case.kernel for case in REPEATS if not case.deterministic} == {"fa4-sm90", "fa4-sm100"}


@pytest.mark.parametrize("case", REPEATS, ids=lambda case: case.id)
def test_there_is_an_order_to_see(case):
    shape, (left, right) = case.shape, case.window_size
    for query in (0, shape.seqlen_q - 1):
        place = query + shape.seqlen_k - shape.seqlen_q
        first = max(0, place - left) if left is not None else 0
        last = min(shape.seqlen_k - 1, place + (0 if case.causal else shape.seqlen_k if right is None else right))
        assert last // TILE - first // TILE + 1 >= 8
    assert shape.heads // shape.heads_kv != 2, "two addends commute"


def test_under_the_flag_every_gradient_has_a_limit():
    for case in FLAGGED:
        held = {budget.tensor for budget in case.budgets if budget.metric == "distinct" and budget.limit == 1}
        assert held == {"o", "dq", "dk", "dv"}
    for case in REPEATS:
        if not case.deterministic:
            assert case.shape.heads == case.shape.heads_kv
            assert {budget.tensor for budget in case.budgets} == {"o", "dk", "dv"}
