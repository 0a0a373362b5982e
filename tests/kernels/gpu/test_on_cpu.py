"""The GPU kernels that torch can also run on a CPU, against float64; and what the others say without a GPU."""

import msgspec
import pytest

from fa4verify import cases, flow, kernels
from fa4verify.vocabulary import Budget, Case, Distribution, Shape

# 2^-8 for P and 2^-8 for O, and S stored in bf16: scores up to 4 nats are off by 2^-7 at most, P by as much again.
LIMIT = 0.02
SHAPE = Shape(1, 96, 130, 4, 2, 32, 32)
FEATURES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (20, 3)},
    "softcap": {"softcap": 5.0},
    "sink": {"learnable_sink": True},
    "scale": {"softmax_scale": 0.3},
}


def case(kernel, operation="forward", **fields):
    tensors = ("o", "lse") if operation == "forward" else ("dq", "dk", "dv")
    budgets = tuple(Budget(t, t, "relative_rmse", "absolute", LIMIT, "derived above") for t in tensors)
    return Case("c", operation, kernel, Distribution("normal"), shape=SHAPE, budgets=budgets, **fields)


def verified(*arguments, **fields):
    record = flow.verify(case(*arguments, **fields), device="cpu")
    return record.verdict.outcome, record.verdict.findings[0].message, record


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("operation", ["forward", "backward"])
def test_standard_is_attention(feature, operation):
    outcome, message, _ = verified("standard-gpu", operation, **FEATURES[feature])
    assert outcome == "PASS", message


def test_standard_has_gradients_through_lse_and_none_for_rows_without_keys():
    shape = Shape(1, 130, 40, 2, 2, 32, 32)
    for fields in ({"lse_gradient": True}, {"causal": True}):
        problem = msgspec.structs.replace(case("standard-gpu", "backward", **fields), shape=shape)
        assert flow.verify(problem, device="cpu").verdict.outcome == "PASS"


@pytest.mark.parametrize("feature", ["plain", "causal", "window", "softcap", "scale"])
def test_flex_is_attention(feature):
    outcome, message, _ = verified("flex-attention", **FEATURES[feature])
    assert outcome == "PASS", message


def test_math_is_attention_and_declines_what_torch_aligns_otherwise():
    square = msgspec.structs.replace(SHAPE, seqlen_k=96)
    for operation in ("forward", "backward"):
        problem = msgspec.structs.replace(case("sdpa-math", operation, causal=True), shape=square)
        record = flow.verify(problem, device="cpu")
        assert record.verdict.outcome == "PASS"
        assert record.checked.get("lse", "the kernel returned none") == "the kernel returned none"
    outcome, message, _ = verified("sdpa-math", causal=True)
    assert (outcome, "top left" in message) == ("SKIPPED", True)


@pytest.mark.parametrize("kernel", [name for name in kernels.names() if kernels.needs_gpu(name)])
def test_without_a_device_each_is_skipped_and_fails_if_one_is_required(kernel):
    problem = case(kernel)
    record = flow.verify(problem)
    assert (record.verdict.outcome, "runs on a GPU" in record.verdict.findings[0].message) == ("SKIPPED", True)
    assert flow.verify(problem, require_gpu=True).verdict.outcome == "FAIL"


@pytest.mark.parametrize("kernel", ["flash-attn-4", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient"])
def test_on_the_cpu_what_needs_cuda_says_so(kernel):
    if kernel == "flash-attn-4" and kernels.availability("fa4@sm_90a") is not None:
        pytest.skip(kernels.availability("fa4@sm_90a"))
    outcome, message, _ = verified(kernel)
    assert (outcome, "needs a CUDA device, its tensors are on cpu" in message) == ("SKIPPED", True)


def test_the_exponential_is_no_attention_and_needs_cuda():
    if kernels.availability("fa4@sm_90a") is not None:  # the same packages
        pytest.skip(kernels.availability("fa4@sm_90a"))
    assert "no attention" in verified("exp2-gpu")[1]
    budget = Budget("y", "y", "max_relative", "absolute", 1e-4, "any")
    problem = Case("c", "exp2", "exp2-gpu", Distribution("specials"), budgets=(budget,))
    assert "needs a CUDA device" in flow.verify(problem, device="cpu").verdict.findings[0].message


def test_a_loaded_case_needs_a_second_stream():
    budget = Budget("dq", "dq", "distinct", "absolute", 1, "any")
    problem = Case("c", "repeat", "standard-gpu", Distribution("normal"), shape=SHAPE, runs=2, loaded=True,
                   budgets=(budget,))  # fmt: skip
    record = flow.verify(problem, device="cpu")
    assert (record.verdict.outcome, "second stream" in record.verdict.findings[0].message) == ("SKIPPED", True)
    idle = msgspec.structs.replace(problem, loaded=False)
    assert flow.verify(idle, device="cpu").metrics["dq"].values["distinct"] == 1
    assert cases.draw(idle).tensors["q"].equal(cases.draw(problem).tensors["q"])
