"""A user's function as a kernel: what it is given, what it may decline, what it may return."""

import pytest
import torch

from fa4verify import kernels
from fa4verify.kernels.user import UserKernel
from fa4verify.vocabulary import Case, Distribution, Inputs, Output, Shape

SHAPE = Shape(batch=2, seqlen_q=5, seqlen_k=7, heads=4, heads_kv=2, head_dim=8, head_dim_v=8)


def problem(**features):
    """Return a case whose kernel is `KERNEL` of this module, and inputs for it."""
    case = Case(
        id="c", operation="forward", kernel=f"{__name__}:KERNEL", distribution=Distribution("normal"), shape=SHAPE
    )
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": (2, 5, 4, 8), "k": (2, 7, 2, 8), "v": (2, 7, 2, 8)}
    tensors = {name: torch.randn(size, generator=generator).bfloat16() for name, size in sizes.items()}
    if features.get("learnable_sink"):
        tensors["learnable_sink"] = torch.zeros(4)
    fields = {name: getattr(case, name) for name in case.__struct_fields__} | features
    return Case(**fields), Inputs(tensors)


def sdpa(q, k, v, *, causal, softmax_scale=None):
    """Torch's attention, whose layout is (batch, heads, seqlen, head_dim)."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=softmax_scale, enable_gqa=True)
    return o.transpose(1, 2)


def run(monkeypatch, kernel, **features):
    monkeypatch.setitem(globals(), "KERNEL", kernel)
    return kernels.run(*problem(**features))


@pytest.mark.parametrize("causal", [False, True])
def test_torch_sdpa_in_five_lines_agrees_with_standard(monkeypatch, causal):
    mine = run(monkeypatch, sdpa, causal=causal)
    case, inputs = problem(causal=causal, kernel="standard")
    theirs = kernels.run(case, inputs)
    assert mine.lse is None
    # Both err by a few bf16 roundings of values below 2.5 in magnitude: at most 3 of half an ulp (2^-7 in [2, 4)).
    assert (mine.o.float() - theirs.o.float()).abs().max() < 3 * 2**-7


def test_an_unused_feature_is_not_asked_for_and_a_needed_one_declines_the_case(monkeypatch):
    def bare(q, k, v):
        return torch.zeros_like(q)

    assert run(monkeypatch, bare).o.shape == (2, 5, 4, 8)
    for features, missing in [
        ({"causal": True}, "causal"),
        ({"softmax_scale": 0.5}, "softmax_scale"),
        ({"window_size": (3, 0)}, "window_size"),
        ({"softcap": 15.0}, "softcap"),
        ({"learnable_sink": True}, "learnable_sink"),
        ({"options": {"degree": 3}}, "degree"),
    ]:
        with pytest.raises(kernels.Unsupported, match=f"does not take {missing}"):
            run(monkeypatch, bare, **features)


def test_softmax_scale_is_left_to_a_default_of_none_and_resolved_otherwise(monkeypatch):
    seen = []

    def own_default(q, k, v, *, causal, softmax_scale=None):
        seen.append(softmax_scale)
        return q

    def required(q, k, v, *, causal, softmax_scale):
        seen.append(softmax_scale)
        return q

    def anything(q, k, v, **options):
        seen.append(options["softmax_scale"])
        return q

    for function in (own_default, required, anything):
        run(monkeypatch, function)
        run(monkeypatch, function, softmax_scale=0.5)
    assert seen == [None, 0.5, 8**-0.5, 0.5, 8**-0.5, 0.5]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda q: q.transpose(1, 2), r"o: expected a torch.Tensor \(2, 5, 4, 8\) torch.bfloat16, got \(2, 4, 5, 8\)"),
        (lambda q: q.float(), "got .* torch.float32"),
        (lambda q: q.float().numpy(), "got ndarray"),
        (lambda q: (q, torch.zeros(2, 5, 4)), r"lse: .* \(2, 4, 5\) torch.float32, got \(2, 5, 4\) torch.float32"),
        (lambda q: (q, torch.zeros(2, 4, 5).half()), "lse: .* got .* torch.float16"),
        (lambda q: (q, None, None), "returned 3 values"),
        (lambda q: q.to_sparse(), "o: .* with values, got one of torch.sparse_coo on cpu"),
        (lambda q: q.to("meta"), "o: .* with values, got one of torch.strided on meta"),
        (lambda q: Output(o=q, activity=None), "activity: expected a dict of numbers, got None"),
        (lambda q: Output(o=q, activity={"max_p": q}), "activity: expected a dict of numbers, got"),
        (lambda q: Output(o=q, provenance={"version": 3}), "provenance: expected a dict of texts, got"),
        (lambda q: Output(o=q, activity_per_row=[]), "activity_per_row: expected a dict of arrays, got a list"),
        (lambda q: q.mul_(2), "wrote to its input q"),
        (lambda q: torch.from_numpy(q.view(torch.int16).numpy()).zero_() is None or q, "wrote to its input q"),
    ],
)
def test_what_is_not_an_output_is_a_violation_with_expected_and_got(monkeypatch, returned, message):
    def kernel(q, k, v):
        return returned(q)

    with pytest.raises(kernels.ContractViolation, match=message) as caught:
        run(monkeypatch, kernel)
    assert "\n" not in str(caught.value)


def test_what_a_kernel_does_to_its_copies_stays_with_them(monkeypatch):
    case, inputs = problem()
    drawn = inputs.tensors["q"].clone()

    def kernel(q, k, v):
        return q.requires_grad_() * 1

    monkeypatch.setitem(globals(), "KERNEL", kernel)
    assert not kernels.run(case, inputs).o.requires_grad
    assert not inputs.tensors["q"].requires_grad

    def writes(q, k, v):
        return q.mul_(2) * 1

    monkeypatch.setitem(globals(), "KERNEL", writes)
    with pytest.raises(kernels.ContractViolation, match="wrote to its input q"):
        kernels.run(case, inputs)
    assert torch.equal(inputs.tensors["q"], drawn)


def test_nan_in_an_untouched_input_is_no_modification():
    case, inputs = problem(kernel="standard")
    inputs.tensors["q"][0, 0, 0, 0] = float("nan")
    assert kernels.run(case, inputs).o.isnan().any()


class Attention(torch.nn.Module):
    """An object with `.forward`, and an exp2 of its own."""

    def forward(self, q, k, v, softcap=0.0):
        """Return q, having touched everything else."""
        return q + 0 * (k.sum() + v.sum() + softcap), torch.zeros(2, 4, 5)

    def exp2(self, x):
        """Return 2^x."""
        return torch.exp2(x)


def test_o_with_lse_an_output_and_an_object_are_all_fine(monkeypatch):
    def with_activity(q, k, v):
        return Output(o=q, activity={"max_p": 1.0})

    def with_gradient(q, k, v):
        return q.clone().requires_grad_()

    assert run(monkeypatch, Attention(), softcap=1.0).lse.shape == (2, 4, 5)
    assert run(monkeypatch, with_activity).activity == {"max_p": 1.0}
    assert not run(monkeypatch, with_gradient).o.requires_grad
    attention = UserKernel("m:Attention", Attention())
    assert attention.exp2(torch.tensor([-1.0])).y.tolist() == [0.5]
    with pytest.raises(kernels.Unsupported, match="does not take degree"):
        attention.exp2(torch.tensor([-1.0]), degree=3)


def test_exp2_is_declined_by_a_kernel_without_one():
    case = Case(id="e", operation="exp2", kernel="standard", distribution=Distribution("normal"))
    with pytest.raises(kernels.Unsupported, match="standard has no exp2"):
        kernels.run(case, Inputs({"x": torch.zeros(3)}))


def test_a_misspelt_option_of_our_own_kernels_is_an_error_not_a_skip():
    with pytest.raises(TypeError, match="no option 'reorder_op'; did you mean 'reorder_ops'"):
        kernels.run(*problem(kernel="standard", options={"reorder_op": True}))
