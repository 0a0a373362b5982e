"""Gradients through a kernel: chained from its own forward, or by autograd through a user's function."""

# ruff: noqa: ARG002, ARG005 - stand-ins for kernels take what they are given and need little of it

import pytest
import torch

from fa4verify import cases, kernels, references
from fa4verify.vocabulary import Case, Distribution, Output, Shape

SHAPE = Shape(2, 9, 13, 4, 2, 16, 16)


def problem(kernel="KERNEL", **features):
    fields = {"id": "b", "operation": "backward", "distribution": Distribution("normal"), "shape": SHAPE}
    name = f"{__name__}:KERNEL" if kernel == "KERNEL" else kernel
    case = Case(**(fields | {"kernel": name} | features))
    return case, cases.draw(case)


def run(monkeypatch, kernel, **features):
    monkeypatch.setitem(globals(), "KERNEL", kernel)
    return kernels.run(*problem(**features))


def attention(q, k, v, *, causal=False, softmax_scale=None, learnable_sink=None):
    """Attention in float64 that autograd can follow."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril(scores.shape[3] - scores.shape[2])
        scores = scores.masked_fill(~seen, -torch.inf)
    if learnable_sink is not None:
        column = learnable_sink.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores, v = torch.cat([scores, column], -1), torch.nn.functional.pad(v, (0, 0, 0, 1))
    o = torch.softmax(scores, -1) @ v
    return o.transpose(1, 2).to(torch.bfloat16), torch.logsumexp(scores, -1).float()


@pytest.mark.parametrize(
    "features", [{}, {"causal": True, "lse_gradient": True}, {"learnable_sink": True, "lse_gradient": True}]
)
def test_autograd_through_a_function_gives_the_gradients(monkeypatch, features):
    output = run(monkeypatch, attention, **features)
    case, inputs = problem(**features)
    truth = references.solve(case, inputs)
    assert output.delta is None
    for name in ("dq", "dk", "dv", *(["dsink"] if case.learnable_sink else [])):
        got, want = getattr(output, name).double(), torch.from_numpy(truth.tensors[name])
        # One rounding of each gradient to bf16, of the product with k or v too.
        assert (got - want).norm() < 2**-8 * want.norm(), name
        assert not getattr(output, name).requires_grad


def test_deterministic_is_passed_only_where_it_is_taken(monkeypatch):
    seen = []

    def takes_it(q, k, v, *, deterministic):
        seen.append(deterministic)
        return q + 0 * k.sum() + 0 * v.sum()

    def takes_anything(q, k, v, **options):
        seen.append(options.get("deterministic", "nothing"))
        return q + 0 * k.sum() + 0 * v.sum()

    run(monkeypatch, takes_it, deterministic=False)
    assert seen == [True, False]  # the plain forward, then the one that autograd follows
    run(monkeypatch, takes_anything, deterministic=False)
    assert seen[2:] == ["nothing", "nothing"]
    assert run(monkeypatch, attention, deterministic=False).dq.shape == (2, 9, 4, 16)


def test_a_tensor_that_the_function_ignores_has_gradient_zero(monkeypatch):
    output = run(monkeypatch, lambda q, k, v: q * 2)
    _, inputs = problem()
    assert torch.equal(output.dq, 2 * inputs.tensors["dout"])
    assert not output.dk.any()
    assert not output.dv.any()


@pytest.mark.parametrize(
    ("kernel", "features", "message"),
    [
        (lambda q, k, v: q.detach(), {}, "gives o no gradient"),
        (lambda q, k, v: q, {"lse_gradient": True}, "gives lse no gradient"),
        (lambda q, k, v: (q * 1, torch.zeros(2, 4, 9)), {"lse_gradient": True}, "gives lse no gradient"),
        (lambda q, k, v: q * 1, {"causal": True}, "does not take causal"),
        (lambda q, k, v, learnable_sink: q * 1, {"learnable_sink": True}, "gives learnable_sink no gradient"),
    ],
)
def test_what_cannot_be_differentiated_is_unsupported_and_never_zero_in_silence(monkeypatch, kernel, features, message):
    with pytest.raises(kernels.Unsupported, match=message):
        run(monkeypatch, kernel, **features)


class Chained:
    """A kernel with a backward of its own that says what it was given."""

    def forward(self, q, k, v, flavour="plain"):
        """Return an O and an LSE that no one else would give."""
        return q * 3, torch.full((2, 4, 9), 7.0)

    def backward(self, dout, q, k, v, o, lse, *, deterministic=True):
        """Check that O and LSE are its own."""
        assert torch.equal(o, q * 3)
        assert torch.equal(lse, torch.full((2, 4, 9), 7.0))
        return dout * (2 if deterministic else 4), k, v


def test_an_objects_own_backward_gets_its_own_o_and_lse(monkeypatch):
    _, inputs = problem()
    output = run(monkeypatch, Chained())
    assert torch.equal(output.dq, 2 * inputs.tensors["dout"])
    assert torch.equal(output.o, inputs.tensors["q"] * 3)
    assert torch.equal(run(monkeypatch, Chained(), deterministic=False).dq, 4 * inputs.tensors["dout"])
    with pytest.raises(kernels.Unsupported, match="does not take dlse"):
        run(monkeypatch, Chained(), lse_gradient=True)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda dout, k, v: (dout, k), "the backward returned a tuple, expected .dq, dk, dv. or an Output"),
        (lambda dout, k, v: (dout, v[:, :1], v), r"dk: expected a torch.Tensor \(2, 13, 2, 16\) torch.bfloat16, got"),
        (lambda dout, k, v: (dout.float(), k, v), "dq: .* got .* torch.float32"),
        (lambda dout, k, v: Output(dq=dout, dk=k), "dv: expected .* got NoneType"),
        (lambda dout, k, v: Output(dq=dout, dk=k, dv=v, delta=torch.zeros(2, 9, 4)), "delta: expected"),
        (lambda dout, k, v: (dout.mul_(2), k, v), "wrote to its input dout"),
    ],
)
def test_what_is_no_set_of_gradients_is_a_violation(monkeypatch, returned, message):
    class Wrong(Chained):
        def backward(self, dout, q, k, v, o, lse):
            return returned(dout, k, v)

    with pytest.raises(kernels.ContractViolation, match=message):
        run(monkeypatch, Wrong())


def test_a_sinks_gradient_may_not_be_missing():
    class Without:
        def forward(self, q, k, v, learnable_sink):
            return q * 1, torch.zeros(2, 4, 9)

        def backward(self, dout, q, k, v, o, lse, learnable_sink):
            return dout, k, v

    with pytest.MonkeyPatch.context() as patch, pytest.raises(kernels.ContractViolation, match="dsink: expected"):
        run(patch, Without(), learnable_sink=True)


def test_a_kernel_without_backward_declines():
    with pytest.raises(kernels.Unsupported, match="standard has no backward"):
        kernels.run(*problem("standard"))


@pytest.mark.parametrize("name", ["fa4-sm90", "fa4-sm100"])
def test_an_emulation_is_chained_with_options_for_either_half(name):
    shape = Shape(1, 40, 300, 2, 1, 64, 64)
    case, inputs = problem(name, shape=shape, lse_gradient=True)
    output = kernels.run(case, inputs)
    again = kernels.kernel(name).backward(
        inputs.tensors["dout"],
        *(inputs.tensors[x] for x in ("q", "k", "v")),
        output.o,
        output.lse,
        dlse=inputs.tensors["dlse"],
    )
    assert torch.equal(output.dq, again.dq)
    # delta is the row sum alone, with or without a gradient through LSE.
    row_sum = (output.o.double() * inputs.tensors["dout"].double()).sum(-1).transpose(1, 2)
    assert (output.delta - row_sum).abs().max() < 64 * 2**-24 * 64
    own = {"rescale_threshold": 0.0} if name == "fa4-sm100" else {"intended_storage": True}
    assert kernels.run(*problem(name, shape=shape, options=own)).dq.shape == (1, 40, 2, 64)
    with pytest.raises(TypeError, match="has no option 'rescale_treshold'"):
        kernels.run(*problem(name, shape=shape, options={"rescale_treshold": 0.0}))


def test_the_order_of_adds_is_drawn_by_seed_only_when_it_is_free():
    shape = Shape(1, 64, 1024, 1, 1, 64, 64)

    def dq(seed, **fields):
        return kernels.run(
            *problem("fa4-sm90", shape=shape, distribution=Distribution("fa3_outlier"), **fields), seed=seed
        )

    free, other = (dq(seed, deterministic=False).dq for seed in (1, 2))
    assert not torch.equal(free, other)
    assert torch.equal(free, dq(1, deterministic=False).dq)
    assert torch.equal(dq(1).dq, dq(2).dq)
