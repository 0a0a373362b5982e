"""What gradients of attention must do whatever the implementation: closed forms, identities, gradcheck, any shape."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.gradcheck import GradcheckError

from fa4verify.references import backward, fp64
from fa4verify.references.backward import Upstream
from fa4verify.references.problem import Problem, stored, widen

from .gradients import draw_backward, full_matrix, problem_backward, seen_by_mp
from .problems import UNIT, name, score_size
from .test_closed_forms import normal

# Inputs are multiples of 1/8 below 8 and scales powers of two: scores and dP are exact. P is good to some 600 u (fp64's
# bound with 512 keys of a tile), sums of up to 300 terms to 300 u, and terms stay below 8 * 64: 1e-10 is beyond all.
CLOSE = 1e-10


def draw(lengths=(40, 300), heads=(2, 1), dims=(8, 4), seed=0):
    sizes = {
        "q": (2, lengths[0], heads[0], dims[0]),
        "k": (2, lengths[1], heads[1], dims[0]),
        "v": (2, lengths[1], heads[1], dims[1]),
    }
    read = Problem(**{key: normal(*size, seed=seed + n) for n, (key, size) in enumerate(sizes.items())}, scale=0.25)
    dout = normal(2, lengths[0], heads[0], dims[1], seed=seed + 3)
    return read, Upstream(dout, normal(2, heads[0], lengths[0], seed=seed + 4))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


def test_one_key_has_weight_one_and_no_gradient_of_its_score():
    read, upstream = draw(lengths=(40, 1))
    result = backward.backward(read, replace(upstream, dlse=None))
    assert not result["dq"].any()
    assert not result["dk"].any()
    np.testing.assert_array_equal(result["dv"][:, 0, 0], upstream.dout.sum(axis=(1, 2)))
    np.testing.assert_array_equal(result["delta"], (upstream.dout * read.v).sum(axis=3).swapaxes(1, 2))


def test_one_key_passes_dlse_on():
    """LSE is the score itself."""
    read, upstream = draw(lengths=(40, 1))
    result = backward.backward(read, upstream)
    dlse = upstream.dlse.swapaxes(1, 2)[..., None]
    close(result["dq"], 0.25 * dlse * read.k)
    close(result["dk"][:, 0, 0], 0.25 * (dlse * read.q).sum(axis=(1, 2)))


def test_one_query():
    read, upstream = draw(lengths=(1, 1), heads=(1, 1))
    result = backward.backward(read, upstream)
    np.testing.assert_array_equal(result["dv"], upstream.dout)


def test_equal_scores():
    read, upstream = draw()
    read = replace(read, q=np.zeros_like(read.q))
    result = backward.backward(read, replace(upstream, dlse=None))
    dp = np.einsum("bqhc,bkc->bhqk", upstream.dout, read.v[:, :, 0])
    ds = (dp - dp.mean(axis=-1, keepdims=True)) / 300
    close(result["dq"], 0.25 * np.einsum("bhqk,bkc->bqhc", ds, read.k[:, :, 0]))
    assert not result["dk"].any()
    close(result["dv"][:, :, 0], np.broadcast_to(upstream.dout.sum(axis=(1, 2))[:, None] / 300, (2, 300, 4)))


def test_a_common_offset_of_the_keys_changes_no_gradient():
    """sum_j dS_ij = 0 without dlse; a dQ that does not hold to it grows with the offset."""
    read, upstream = draw()
    offset = np.array([64.0, -32, 16, 0, 8, 128, -64, 4])
    one, other = (backward.backward(p, replace(upstream, dlse=None)) for p in (read, replace(read, k=read.k + offset)))
    for gradient in ("dq", "dk", "dv", "delta"):
        np.testing.assert_allclose(one[gradient], other[gradient], rtol=0, atol=100 * CLOSE)
    with_dlse = backward.backward(replace(read, k=read.k + offset), upstream)["dq"]
    without = backward.backward(read, upstream)["dq"]
    shift = 0.25 * upstream.dlse.swapaxes(1, 2)[..., None] * offset  # sum_j dS_ij = dlse_i
    np.testing.assert_allclose(with_dlse, without + shift, rtol=0, atol=100 * CLOSE)


@pytest.mark.parametrize("mask", [{}, {"right": 0}, {"left": 30, "right": 5}], ids=name)
@pytest.mark.parametrize("sink", [None, np.array([0.5, -2.0])], ids=["", "sink"])
def test_sums_over_keys(mask, sink):
    """Weights sum to one less the sink's p, the gradients of a row's logits to dlse; both survive any mask."""
    read, upstream = draw(lengths=(200, 300))
    read = replace(read, sink=sink, **mask)
    result = backward.backward(read, upstream)
    p = np.zeros((2, 2, 200)) if sink is None else np.exp(sink[:, None] - result["lse"])
    d = result["delta"] - upstream.dlse
    close(result["dv"].sum(axis=(1, 2)), np.einsum("bhq,bqhc->bc", 1 - p, upstream.dout))
    np.testing.assert_allclose(
        result["dk"].sum(axis=(1, 2)),
        0.25 * np.einsum("bhq,bqhc->bc", upstream.dlse + p * d, read.q),
        rtol=0,
        atol=100 * CLOSE,
    )
    if sink is not None:
        close(result["dsink"], -(p * d).sum(axis=(0, 2)))


def test_q_dq_is_k_dk():
    """Both are the gradient with respect to the scale, times the scale."""
    read, upstream = draw(heads=(4, 2))
    read = replace(read, softcap=3.0, right=10)
    result = backward.backward(read, upstream)
    np.testing.assert_allclose((read.q * result["dq"]).sum(), (read.k * result["dk"]).sum(), rtol=1e-10)


def test_gradients_are_linear_in_what_comes_back():
    read, upstream = draw()
    read = replace(read, sink=np.array([0.0, 1.0]))
    other = Upstream(upstream.dout[:, ::-1], upstream.dlse[..., ::-1])
    mixed = Upstream(2 * upstream.dout - other.dout, 2 * upstream.dlse - other.dlse)
    one, two, three = (backward.backward(read, u) for u in (upstream, other, mixed))
    for gradient in ("dq", "dk", "dv", "delta", "dsink"):
        np.testing.assert_allclose(three[gradient], 2 * one[gradient] - two[gradient], rtol=0, atol=100 * CLOSE)


def test_a_group_is_the_sum_of_its_heads():
    read, upstream = draw(heads=(6, 2))
    repeated = replace(read, k=read.k.repeat(3, axis=2), v=read.v.repeat(3, axis=2))
    grouped, alone = (backward.backward(p, upstream) for p in (read, repeated))
    close(grouped["dq"], alone["dq"])
    for gradient in ("dk", "dv"):
        close(grouped[gradient], alone[gradient].reshape(2, 300, 2, 3, -1).sum(axis=3))


def test_permuted_keys_permute_their_gradients():
    read, upstream = draw()
    order = np.random.default_rng(3).permutation(300)
    one, other = (backward.backward(p, upstream) for p in (read, replace(read, k=read.k[:, order], v=read.v[:, order])))
    close(one["dq"], other["dq"])
    close(one["dk"][:, order], other["dk"])
    close(one["dv"][:, order], other["dv"])


def test_a_sink_is_a_key_without_a_value():
    read, upstream = draw()
    read = replace(read, q=np.concatenate([read.q, np.ones((2, 40, 2, 1))], axis=3))
    k = np.concatenate([read.k, np.zeros((2, 300, 1, 1))], axis=3)
    key, value = np.zeros((2, 1, 1, 9)), np.zeros((2, 1, 1, 4))
    key[..., 8] = 3.0  # its score is 0.25 * 3 for every query
    with_sink = backward.backward(replace(read, k=k, sink=np.array([0.75, 0.75])), upstream)
    as_key = backward.backward(
        replace(read, k=np.concatenate([key, k], axis=1), v=np.concatenate([value, read.v], axis=1)), upstream
    )
    close(with_sink["dk"], as_key["dk"][:, 1:])
    close(with_sink["dv"], as_key["dv"][:, 1:])
    close(with_sink["dsink"].sum(), as_key["dk"][:, 0, 0, 8].sum() / 0.25)
    close(with_sink["dq"][..., :8], as_key["dq"][..., :8])


def test_a_wide_cap_is_none():
    read, upstream = draw()
    free, wide = (backward.backward(replace(read, softcap=cap), upstream) for cap in (0.0, 1e6))
    for gradient in ("dq", "dk", "dv"):  # z differs from s by s^3 / 3 t^2: 1e-7 at 64
        np.testing.assert_allclose(free[gradient], wide[gradient], rtol=0, atol=1e-4)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, features):
        read = Problem(
            *(stored(x) for x in (q, k, v)), sink=None if sink is None else sink.detach().numpy(), **features
        )
        ctx.read = read
        result = fp64.forward(read)
        return torch.tensor(result["o"]), torch.tensor(result["lse"])

    @staticmethod
    def backward(ctx, dout, dlse):
        grads = backward.backward(ctx.read, Upstream(dout.numpy(), dlse.numpy()))
        return (*(torch.tensor(grads[key]) if key in grads else None for key in ("dq", "dk", "dv", "dsink")), None)


GRADCHECK = [
    {},
    {"right": 0},
    {"left": 1, "right": 1, "softcap": 1.5},
    {"right": 0, "sink": True},
    {"softcap": 0.7, "sink": True},
]


def _gradcheck(features):
    torch.manual_seed(0)
    size = {"q": (1, 3, 2, 2), "k": (1, 4, 1, 2), "v": (1, 4, 1, 3)}
    q, k, v = (torch.randn(x, dtype=torch.float64, requires_grad=True) for x in size.values())
    features = {"scale": 0.8, **features}
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True) if features.pop("sink", False) else None
    return torch.autograd.gradcheck(lambda *leaves: _Attention.apply(*leaves, features), (q, k, v, sink))


@pytest.mark.parametrize("features", GRADCHECK, ids=name)
def test_gradcheck(features):
    assert _gradcheck(features)


def test_gradcheck_notices_a_wrong_derivative(monkeypatch):
    monkeypatch.setattr(backward, "_slope", np.ones_like)
    with pytest.raises(GradcheckError):
        _gradcheck({"softcap": 1.5})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seqlen_q=st.integers(0, 40),
    seqlen_k=st.integers(0, 40),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    dims=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    left=st.none() | st.integers(-5, 45),
    right=st.none() | st.integers(-5, 45),
    sink=st.booleans(),
    softcap=st.sampled_from([0.0, 4.0]),
    tiles=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_any_shape_and_mask_matches_the_full_matrix(
    seqlen_q, seqlen_k, heads, dims, causal, left, right, sink, softcap, tiles
):
    features = {"lengths": (seqlen_q, seqlen_k), "heads": heads, "dims": dims, "causal": causal}
    features |= {"window_size": (left, right), "learnable_sink": sink, "softcap": softcap}
    read, upstream = problem_backward(**features)
    expected, sizes, _ = full_matrix(read, upstream, seen_by_mp(seqlen_q, seqlen_k, features))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward, "ROWS", tiles[0])
        patch.setattr(backward, "KEYS", tiles[1])
        result = backward.backward(read, upstream)
        finite = np.abs(result["lse"][np.isfinite(result["lse"])]).max(initial=0.0)
        factors = backward.error_bound(read, score_size(draw_backward(**features), read.scale), float(finite))
    for gradient, values in expected.items():
        # The long double that it is held to has bounds 2^-11 times as large.
        excess = np.abs(result[gradient] - values.astype(float)) - 1.01 * (factors[gradient] * sizes[gradient])
        assert (excess <= UNIT * np.abs(values)).all(), gradient


def _extra_memory(solve, seqlen):
    """Return the peak of allocated memory above what was held before and what is returned."""
    q, k, v, dout = (stored(torch.ones(1, seqlen, 1, 32, dtype=torch.bfloat16)) for _ in range(4))
    tracemalloc.start()
    try:
        result = solve(Problem(q, k, v, 0.125), Upstream(dout))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept >= sum(values.nbytes for values in result.values())
    return peak - kept


def _with_all_scores(read, upstream):
    q, k, dout = (widen(x[0, :, 0]) for x in (read.q, read.k, upstream.dout))
    p = np.exp(q @ k.T * read.scale - np.log(len(k)))
    return {"dq": p @ k, "dk": p.T @ q, "dv": p.T @ dout}


def test_memory_does_not_grow_with_the_sequence():
    short, long = (_extra_memory(backward.backward, seqlen) for seqlen in (2048, 6144))
    assert long <= 1.1 * short
    assert long < 6144 * 6144 * 8 / 50


def test_the_memory_test_notices_a_full_score_matrix():
    assert _extra_memory(_with_all_scores, 1024) > 3 * _extra_memory(_with_all_scores, 512)
