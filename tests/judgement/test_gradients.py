"""What is asked of gradients beyond their budgets: zeros where nothing is seen, shapes, by-products, vacuity."""

import numpy as np
import pytest
import torch

from fa4verify.judgement import admit, checked, judge, measure
from fa4verify.judgement.diagnosis import diagnose
from fa4verify.judgement.layout import contract_breach, layout
from fa4verify.vocabulary import Output, Shape, Truth
from tests.judgement.attention import budget, case

SHAPE = Shape(2, 3, 5, 4, 2, 8, 8)
SIZES = {"dq": (2, 3, 4, 8), "dk": (2, 5, 2, 8), "dv": (2, 5, 2, 8), "delta": (2, 4, 3), "dsink": (4,)}
NO_KEY, NO_QUERY = np.array([True, False, False]), np.array([False, False, False, False, True])
BUDGETS = tuple(budget(tensor, "rmse", limit=1e-9) for tensor in SIZES)
CASE = case(operation="backward", shape=SHAPE, learnable_sink=True, budgets=BUDGETS)


def problem():
    """Return a truth and the output that equals it: row 0 has no key, key 4 no query."""
    generator = np.random.default_rng(0)
    tensors = {name: np.round(generator.standard_normal(size) * 8) / 8 for name, size in SIZES.items()}
    tensors["dq"][:, 0] = tensors["dk"][:, 4] = tensors["dv"][:, 4] = 0.0
    truth = Truth(tensors, moments={"queries_without_key": NO_KEY, "keys_without_query": NO_QUERY})
    given = {name: torch.from_numpy(x).to(torch.bfloat16) for name, x in tensors.items() if len(SIZES[name]) == 4}
    return truth, Output(**given, **{name: torch.from_numpy(tensors[name]).float() for name in ("delta", "dsink")})


def changed(output, name, index, value):
    tensors = {tensor: getattr(output, tensor) for tensor in SIZES}
    tensors[name] = tensors[name].clone()
    tensors[name][index] = value
    return Output(**tensors)


def verdict(output, truth, a_case=CASE):
    return judge(a_case, measure(a_case, output, truth), {}, output, truth)


def test_the_truth_passes_and_every_tensor_is_checked():
    truth, output = problem()
    assert verdict(output, truth).outcome == "PASS"
    assert checked(CASE, output, truth) == dict.fromkeys(SIZES, "checked")


@pytest.mark.parametrize(
    ("name", "index", "what"),
    [
        ("dq", (1, 0, 2, 3), "dq: 1 rows without a key are not exactly 0"),
        ("dk", (0, 4, 1, 0), "dk: 1 keys without a query are not exactly 0"),
        ("dv", (0, 4), "dv: 2 keys without a query are not exactly 0"),
    ],
)
def test_what_nobody_sees_is_exactly_zero_whatever_the_budgets_say(name, index, what):
    truth, output = problem()
    lax = case(operation="backward", shape=SHAPE, budgets=(budget(name, "max_abs", limit=10.0),))
    assert verdict(changed(output, name, index, -0.0), truth, lax).outcome == "PASS"
    found = verdict(changed(output, name, index, 2.0**-100), truth, lax)
    assert found.outcome == "FAIL"
    assert found.findings[0].message == what
    assert verdict(changed(output, name, (0, 1, 0, 0), 0.5), truth, lax).outcome == "PASS"  # seen, and within the limit


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_class_that_is_not_the_expected_one_fails(name, value):
    truth, output = problem()
    broken = changed(output, name, (0,) * len(SIZES[name]), value)
    assert verdict(broken, truth).findings[0].message.startswith(f"{name}: 1 element expected finite, got ")


def test_the_worst_row_is_a_token_of_a_head():
    truth, output = problem()
    metrics = measure(CASE, changed(output, "dk", (1, 2, 1), 100.0), truth)
    assert metrics["dk"].where["worst_row_relative_l2"] == (1, 2, 1)
    assert metrics["dq"].values["worst_row_relative_l2"] == 0
    assert layout(CASE, "delta", SIZES["delta"]).row == 3
    assert layout(CASE, "dsink", SIZES["dsink"]).row == 4


def test_gradients_have_the_inputs_dtype_and_by_products_fp32():
    truth, output = problem()
    assert all(contract_breach(CASE, output, truth, name) is None for name in SIZES)
    assert "dtype torch.float32, expected torch.bfloat16" in contract_breach(
        CASE, Output(dq=output.dq.float()), truth, "dq"
    )
    assert "expected torch.float32" in contract_breach(CASE, Output(delta=output.delta.half()), truth, "delta")


def test_delta_may_be_kept_back_but_no_gradient_may():
    truth, output = problem()
    without = {name: getattr(output, name) for name in SIZES}
    found = verdict(Output(**{**without, "delta": None}), truth)
    assert found.outcome == "PASS"
    assert checked(CASE, Output(**{**without, "delta": None}), truth)["delta"] == "the kernel returned none"
    for name in ("dq", "dk", "dv", "dsink"):
        assert verdict(Output(**{**without, name: None}), truth).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize("name", SIZES)
def test_vague_budgets_on_a_gradient_are_refused_and_sharp_ones_admitted(name):
    truth, _ = problem()

    def reasons(limit):
        return admit(case(operation="backward", shape=SHAPE, budgets=(budget(name, "rmse", limit=limit),)), truth, {})

    assert reasons(100.0)
    assert reasons(100.0)[0].startswith(f"{name}: zeros would pass")
    assert reasons(1e-6) == []


SCALE = 8**-0.5


@pytest.mark.parametrize(
    ("name", "wrong", "hint"),
    [
        ("dq", lambda x: x / SCALE, "dq is 2.82843 times the truth: the softmax scale is missing"),
        ("dk", lambda x: x * SCALE, "dk is 0.353553 times the truth: the softmax scale is there twice"),
        ("dv", lambda x: 0 * x, "dv is 0 times the truth: it is zero everywhere"),
        ("dsink", lambda x: -x, "dsink is -1 times the truth: its sign is wrong"),
        ("dv", lambda x: x.flip(2), "heads of dv are permuted: 0 is the truth's 1, 1 is the truth's 0"),
        ("dq", lambda x: 1.5 * x, "dq is 1.5 times the truth"),
    ],
)
def test_hints_at_the_usual_causes(name, wrong, hint):
    truth, output = problem()
    tensors = {tensor: getattr(output, tensor).float() for tensor in SIZES}
    tensors[name] = wrong(tensors[name])
    assert diagnose(CASE, Output(**tensors), truth) == [(name, hint)]


def test_a_right_backward_and_a_random_one_get_no_hint():
    truth, output = problem()
    assert diagnose(CASE, output, truth) == []
    generator = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}
    assert diagnose(CASE, Output(**{**noise, "dsink": None}), truth) == []
