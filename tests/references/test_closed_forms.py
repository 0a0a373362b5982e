"""What attention must do whatever the implementation: closed forms, symmetries, and where it may not remember."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4verify.references import fp64, mp
from fa4verify.references.problem import Problem, stored, widen

from .problems import UNIT, draw, problem, score_size


def solved(q, k, v, scale=0.5, **features):
    return fp64.forward(Problem(q, k, v, scale, **features))


def normal(*size, seed=0):
    """Multiples of 1/8 below 8: every sum of their products is exact, so error comes from exp and sums alone."""
    return np.clip(np.round(np.random.default_rng(seed).standard_normal(size) * 8) / 8, -8, 8)


def test_equal_scores_give_the_mean_of_the_values():
    v = normal(1, 700, 1, 5)
    result = solved(np.zeros((1, 3, 1, 4)), normal(1, 700, 1, 4), v)
    # Sums of 700 numbers below 8 with a spacing of 1/8 are exact: one division is left.
    np.testing.assert_allclose(result["o"], np.broadcast_to(v.mean(axis=1), (1, 3, 1, 5)), rtol=0, atol=4 * UNIT)
    np.testing.assert_allclose(result["lse"], np.log(700), rtol=8 * UNIT)


def test_one_key_gives_its_value_exactly():
    q, k, v = normal(1, 6, 1, 4), normal(1, 1, 1, 4, seed=1), normal(1, 1, 1, 3, seed=2)
    result = solved(q, k, v)
    np.testing.assert_array_equal(result["o"], np.broadcast_to(v, (1, 6, 1, 3)))
    np.testing.assert_array_equal(result["lse"][0, 0], 0.5 * q[0, :, 0] @ k[0, 0, 0])


def test_values_of_one_give_one():
    result = solved(normal(1, 300, 2, 8), normal(1, 1100, 1, 8, seed=1), np.ones((1, 1100, 1, 2)), scale=2.0)
    # Numerator and denominator are sums of the same weights in different orders: 1100 additions each.
    np.testing.assert_allclose(result["o"], 1.0, rtol=0, atol=2 * 1100 * UNIT)


def test_permuted_keys_change_nothing_but_roundings():
    q, k, v = normal(1, 40, 1, 8), normal(1, 1100, 1, 8, seed=1), normal(1, 1100, 1, 4, seed=2)
    order = np.random.default_rng(3).permutation(1100)
    one, other = solved(q, k, v), solved(q, k[:, order], v[:, order])
    # Scores are exact, weights good to 10 u + |s| u each way, sums to 2 (512 + 3) u; |v| <= 8.
    bound = 2 * (30 + 2 * 515) * UNIT
    np.testing.assert_allclose(one["o"], other["o"], rtol=0, atol=8 * bound)
    np.testing.assert_allclose(one["lse"], other["lse"], rtol=0, atol=bound)


def test_a_common_offset_of_the_keys_moves_lse_alone():
    q, k, v = normal(1, 40, 1, 8), normal(1, 600, 1, 8, seed=1), normal(1, 600, 1, 4, seed=2)
    offset = np.array([64.0, -32, 16, 0, 8, 128, -64, 4])
    one, other = solved(q, k, v), solved(q, k + offset, v)
    shift = 0.5 * (q[0, :, 0] @ offset)  # exact, up to 600 nats
    bound = 2 * (30 + 2 * 515) * UNIT
    np.testing.assert_allclose(one["o"], other["o"], rtol=0, atol=8 * bound)
    np.testing.assert_allclose(other["lse"][0, 0], one["lse"][0, 0] + shift, rtol=0, atol=bound + 2 * 600 * UNIT)


def test_two_halves_of_the_keys_merge_by_their_lse():
    q, k, v = normal(1, 40, 1, 8), normal(1, 900, 1, 8, seed=1), normal(1, 900, 1, 4, seed=2)
    whole = solved(q, k, v)
    halves = [solved(q, k[:, part], v[:, part]) for part in (slice(0, 300), slice(300, None))]
    shares = [np.exp(half["lse"] - whole["lse"])[0, 0, :, None] for half in halves]
    merged = sum(share * half["o"][0, :, 0] for share, half in zip(shares, halves, strict=True))
    np.testing.assert_allclose(whole["o"][0, :, 0], merged, rtol=0, atol=8 * 4 * (30 + 2 * 515) * UNIT)


def test_softcap_of_1e9_is_none_and_a_small_one_bounds_the_scores():
    q, k, v = normal(1, 8, 1, 8), normal(1, 30, 1, 8, seed=1), normal(1, 30, 1, 4, seed=2)
    free, wide, tight = (solved(q, k, v, softcap=cap) for cap in (0.0, 1e9, 1e-9))
    np.testing.assert_allclose(free["lse"], wide["lse"], rtol=0, atol=12 * 1e9 * UNIT)
    np.testing.assert_allclose(tight["o"], np.broadcast_to(v.mean(axis=1), tight["o"].shape), rtol=0, atol=8e-9)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seqlen_q=st.integers(0, 40),
    seqlen_k=st.integers(0, 40),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    dims=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    left=st.none() | st.integers(-5, 45),
    right=st.none() | st.integers(-5, 45),
    tiles=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_any_shape_and_mask_matches_the_full_matrix(seqlen_q, seqlen_k, heads, dims, causal, left, right, tiles):
    features = {"lengths": (seqlen_q, seqlen_k), "heads": heads, "dims": dims, "causal": causal}
    features["window_size"] = (left, right)
    inputs, read = draw(**features), problem(**features)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp64, "ROWS", tiles[0])
        patch.setattr(fp64, "KEYS", tiles[1])
        result = fp64.forward(read)
    seen = np.array(
        [
            [mp.visible(i, j, seqlen_q, seqlen_k, causal=causal, window_size=(left, right)) for j in range(seqlen_k)]
            for i in range(seqlen_q)
        ]
    ).reshape(seqlen_q, seqlen_k)
    q, k, v = (inputs.tensors[name].double().transpose(1, 2).numpy().astype(np.longdouble) for name in "qkv")
    k, v = (x.repeat(heads[0] // heads[1], axis=1) for x in (k, v))
    e = np.where(seen, np.exp(np.einsum("bhqd,bhkd->bhqk", q, k) * read.scale), 0)
    total = e.sum(axis=-1, keepdims=True)
    o = (np.einsum("bhqk,bhkd->bhqd", e, v) / np.where(total == 0, 1, total)).swapaxes(1, 2)
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0])
    bound = fp64.error_bound(read, score_size(inputs, read.scale)) + (40 / tiles[1]) * 10 * UNIT
    np.testing.assert_allclose(result["o"], o.astype(np.float64), rtol=0, atol=bound * np.abs(v).max(initial=1))
    np.testing.assert_allclose(result["lse"], lse.astype(np.float64), rtol=0, atol=bound + 100 * UNIT)


def _extra_memory(solve, seqlen):
    """Return the peak of allocated memory above what was held before and what is returned."""
    q, k, v = (stored(torch.ones(1, seqlen, 1, 32, dtype=torch.bfloat16)) for _ in range(3))
    tracemalloc.start()
    try:
        result = solve(Problem(q, k, v, 0.125))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept >= sum(values.nbytes for values in result.values())
    return peak - kept


def _with_all_scores(read):
    q, k, v = (widen(x[0, :, 0]) for x in (read.q, read.k, read.v))
    p = np.exp(q @ k.T * read.scale)
    total = p.sum(axis=1, keepdims=True)
    return {"o": p @ v / total, "lse": np.log(total)}


def test_memory_does_not_grow_with_the_sequence():
    short, long = (_extra_memory(fp64.forward, seqlen) for seqlen in (2048, 8192))
    assert long <= 1.1 * short
    assert long < 8192 * 8192 * 8 / 100


def test_the_memory_test_notices_a_full_score_matrix():
    assert _extra_memory(_with_all_scores, 1024) > 3 * _extra_memory(_with_all_scores, 512)
