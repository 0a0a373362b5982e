"""fa4-staged: nothing exact is fa4-sm90 to the bit, all exact is the truth, and each stage is felt where it acts.

The truth here is torch autograd in float64, not our reference.
"""

import numpy as np
import pytest
import torch

from fa4verify import kernels
from fa4verify.kernels.emulated.fa4_sm90 import FA4_SM90
from fa4verify.kernels.emulated.staged import FA4_STAGED, STAGES, stages_of

GRADIENTS = ("dq", "dk", "dv", "delta")
# seqlen_q, seqlen_k, heads, heads_kv, head_dim, options
PROBLEMS = {
    "plain": (256, 384, 1, 1, 64, {}),
    "ragged causal gqa": (200, 333, 2, 1, 64, {"causal": True}),
    "rows without keys": (150, 100, 1, 1, 64, {"causal": True}),
    "window": (150, 300, 2, 2, 128, {"window_size": (64, 10)}),
    "softcap": (100, 200, 1, 1, 96, {"softcap": 3.0}),
    "48 keys a tile": (70, 130, 1, 1, 256, {"softmax_scale": 0.1}),
    "head dim 40": (130, 150, 1, 1, 40, {}),
}
DTYPES = [torch.bfloat16, torch.float16]


def _inputs(problem, dtype, seed=0):
    seqlen_q, seqlen_k, heads, heads_kv, head_dim, options = PROBLEMS[problem]
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    q, dout = (normal(1, seqlen_q, heads, head_dim) for _ in range(2))
    k, v = (normal(1, seqlen_k, heads_kv, head_dim) for _ in range(2))
    dlse = torch.randn(1, heads, seqlen_q, generator=generator) if problem == "plain" else None
    return dout, q, k, v, {**options}, dlse


def _gradients(kernel, dout, q, k, v, options, dlse=None, **own):
    forward = kernel.forward(q, k, v, **options)
    return kernel.backward(dout, q, k, v, forward.o, forward.lse, dlse=dlse, **options, **own)


def _float64(dout, q, k, v, options, dlse=None):
    """Gradients by autograd, and delta: an implementation of its own."""
    q64, k64, v64 = (x.double().requires_grad_() for x in (q, k, v))
    group, seqlen_q, seqlen_k = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=2) for x in (k64, v64))
    s = torch.einsum("bqhd,bkhd->bhqk", q64, keys) * options.get("softmax_scale", q.shape[3] ** -0.5)
    if cap := options.get("softcap"):
        s = cap * torch.tanh(s / cap)
    beyond = torch.arange(seqlen_k)[None] - torch.arange(seqlen_q)[:, None] - seqlen_k + seqlen_q
    left, right = (None, 0) if options.get("causal") else options.get("window_size", (None, None))
    hidden = torch.zeros_like(beyond, dtype=torch.bool)
    hidden = hidden if left is None else hidden | (beyond < -left)
    hidden = hidden if right is None else hidden | (beyond > right)
    seen = ~hidden.all(dim=1)
    s = s[:, :, seen].masked_fill(hidden[seen], -torch.inf)
    lse = torch.logsumexp(s, dim=3)
    o = torch.einsum("bhqk,bkhd->bqhd", torch.exp(s - lse[..., None]), values)
    loss = (o * dout.double()[:, seen]).sum() + (0 if dlse is None else (lse * dlse.double()).sum())
    loss.backward()
    delta = torch.zeros(q.shape[0], q.shape[2], seqlen_q, dtype=torch.float64)
    delta[:, :, seen] = (o * dout.double()[:, seen]).sum(dim=3).transpose(1, 2).detach()
    return {"dq": q64.grad, "dk": k64.grad, "dv": v64.grad, "delta": delta}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_nothing_exact_is_fa4_sm90(problem, dtype):
    inputs = _inputs(problem, dtype)
    device = {"intended_storage": True} if problem == "head dim 40" else {}
    expected, got = _gradients(FA4_SM90, *inputs, **device), _gradients(FA4_STAGED, *inputs)
    for name in GRADIENTS:
        assert torch.equal(getattr(got, name), getattr(expected, name)), name


def test_the_random_order_is_fa4_sm90s():
    *inputs, dlse = _inputs("plain", torch.float16)
    order = {"deterministic": False, "seed": 3}
    expected, got = (_gradients(kernel, *inputs, dlse, **order) for kernel in (FA4_SM90, FA4_STAGED))
    assert torch.equal(got.dq, expected.dq)
    assert not torch.equal(got.dq, _gradients(FA4_STAGED, *inputs, dlse).dq)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_everything_exact_is_the_truth(problem):
    """Sums of 400 float64 terms of size 1, scores up to 10 and P relative to them: a few hundred unit roundoffs."""
    inputs = _inputs(problem, torch.bfloat16)
    got, truth = _gradients(FA4_STAGED, *inputs, exact="all"), _float64(*inputs)
    for name in GRADIENTS:
        assert getattr(got, name).dtype == torch.float64
        np.testing.assert_allclose(getattr(got, name), truth[name], rtol=0, atol=1e-13, err_msg=name)


# What each stage's rounding must reach, and nothing else.
REACHES = {
    "weights": {"dq", "dk", "dv"},
    "p": {"dv"},
    "delta": {"dq", "dk", "delta"},
    "difference": {"dq", "dk"},
    "ds": {"dq", "dk"},
    "accumulation": {"dq", "dk", "dv"},
    "output": {"dq", "dk", "dv", "delta"},
}


@pytest.mark.parametrize("stage", STAGES)
def test_one_rounding_alone_reaches_its_own_gradients(stage):
    """All stages exact but one: what differs from the truth is what that stage feeds."""
    inputs = _inputs("ragged causal gqa", torch.bfloat16)
    got, truth = _gradients(FA4_STAGED, *inputs, exact=[s for s in STAGES if s != stage]), _float64(*inputs)
    touched = {name for name in GRADIENTS if (getattr(got, name).double() - truth[name]).abs().max() > 1e-12}
    assert touched == REACHES[stage]


def test_roundings_that_do_not_happen_change_nothing():
    """One key: P = 1 and dS = 0 whatever is rounded, up to delta, which comes from an O that is V to the bit."""
    generator = torch.Generator().manual_seed(0)
    dout, q, k, v = (torch.randn(1, n, 1, 64, generator=generator).to(torch.bfloat16) for n in (5, 5, 1, 1))
    device = _gradients(FA4_STAGED, dout, q, k, v, {})
    for stage in ("p", "ds", "delta"):
        exact = _gradients(FA4_STAGED, dout, q, k, v, {}, exact=[stage])
        assert torch.equal(exact.dv, device.dv), stage
        assert (exact.dq - device.dq).abs().max() < 1e-5, stage


def test_errors_of_stages_add_up():
    """Seven independent roundings: the squares of their errors alone add up to the square of all, within 15 %."""
    inputs = _inputs("plain", torch.bfloat16)
    truth = _float64(*inputs)

    def square(exact, name):
        got = getattr(_gradients(FA4_STAGED, *inputs, exact=exact), name).double()
        return float(((got - truth[name]) ** 2).mean())

    alone = [[s for s in STAGES if s != stage] for stage in STAGES]
    for name in ("dq", "dk", "dv"):
        assert sum(square(exact, name) for exact in alone) == pytest.approx(square((), name), rel=0.15)


def test_gradients_can_be_left_in_fp32():
    """Rounded to 16 bits they are the usual ones; exact ones differ from float64's by half an ulp of fp32."""
    inputs = _inputs("plain", torch.bfloat16)
    usual, wide = (_gradients(FA4_STAGED, *inputs, grad_dtype=dtype) for dtype in (None, "fp32"))
    exact, stored = (_gradients(FA4_STAGED, *inputs, exact="all", grad_dtype=dtype) for dtype in (None, "fp32"))
    for name in ("dq", "dk", "dv"):
        assert torch.equal(getattr(wide, name).bfloat16(), getattr(usual, name))
        assert torch.equal(getattr(exact, name).float(), getattr(stored, name))
    assert stored.delta.dtype == torch.float32


def test_stages_are_named():
    assert stages_of("all") == set(STAGES)
    assert stages_of("none") == stages_of([]) == set()
    assert stages_of("ds") == stages_of(["ds"]) == {"ds"}
    with pytest.raises(ValueError, match="no stage 'dS'; the stages are weights, p, delta"):
        stages_of(["ds", "dS"])


def test_it_is_registered():
    assert kernels.kernel("fa4-staged") is FA4_STAGED
