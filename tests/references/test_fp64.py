"""fp64 against mpmath on every feature, against torch on real sizes, and twins that are wrong on purpose."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from fa4verify.references import fp64
from fa4verify.references.problem import Problem

from .problems import FEATURES, TINY_TILES, attention_case, draw, name, problem, score_size, worst


@pytest.fixture
def tiny_tiles(monkeypatch):
    monkeypatch.setattr(fp64, "ROWS", TINY_TILES[0])
    monkeypatch.setattr(fp64, "KEYS", TINY_TILES[1])


@pytest.mark.parametrize("tiles", [(256, 512), TINY_TILES], ids=["tiles-256x512", "tiles-3x4"])
@pytest.mark.parametrize("features", FEATURES, ids=name)
def test_is_within_its_bound_of_mpmath(features, tiles, monkeypatch):
    monkeypatch.setattr(fp64, "ROWS", tiles[0])
    monkeypatch.setattr(fp64, "KEYS", tiles[1])
    assert worst(fp64.forward(problem(**features)), **features) <= 1.0


@pytest.mark.parametrize("spread", [1e-3, 30.0])
@pytest.mark.parametrize("extra", [{}, {"softcap": 15.0}, {"learnable_sink": True}], ids=name)
def test_is_within_its_bound_for_flat_and_for_peaked_rows(spread, extra, tiny_tiles):
    features = {"lengths": (4, 30), "dims": (8, 2), "spread": spread, **extra}
    assert worst(fp64.forward(problem(**features)), **features) <= 1.0


class _OneKeyTooFar(Problem):
    def visible(self, rows):
        first, last = super().visible(rows)
        return first, np.minimum(last + 1, self.k.shape[1])


class _OneKeyTooFew(Problem):
    def visible(self, rows):
        first, last = super().visible(rows)
        return np.minimum(first + 1, last), last


class _TopLeftAligned(Problem):
    def visible(self, rows):
        return super().visible(rows - self.k.shape[1] + self.q.shape[1])


def _as(kind, p):
    return kind(p.q, p.k, p.v, p.scale, p.softcap, p.left, p.right, p.sink)


def _interleaved_heads(p):
    """Query head h reads key head h % heads_kv: what swapping the two inner heads of four over two does."""
    wrong = fp64.forward(replace(p, q=p.q[:, :, [0, 2, 1, 3]]))
    return {"o": wrong["o"][:, :, [0, 2, 1, 3]], "lse": wrong["lse"][:, [0, 2, 1, 3]]}


def _in_base_2(p):
    result = fp64.forward(p)
    return {"o": result["o"], "lse": result["lse"] / math.log(2)}


CAUSAL, WINDOW = {"causal": True, "lengths": (5, 9)}, {"window_size": (2, 1), "lengths": (5, 9)}
TWINS = {
    "mask one key too far": (CAUSAL, lambda p: fp64.forward(_as(_OneKeyTooFar, p))),
    "window one key too short": (WINDOW, lambda p: fp64.forward(_as(_OneKeyTooFew, p))),
    "top-left aligned": (CAUSAL, lambda p: fp64.forward(_as(_TopLeftAligned, p))),
    "window sides swapped": (WINDOW, lambda p: fp64.forward(replace(p, left=p.right, right=p.left))),
    "scale off by 2^-35": ({}, lambda p: fp64.forward(replace(p, scale=p.scale * (1 + 2.0**-35)))),
    "scale of head_dim_v": ({}, lambda p: fp64.forward(replace(p, scale=p.v.shape[3] ** -0.5))),
    "sink counted twice": (
        {"learnable_sink": True},
        lambda p: fp64.forward(replace(p, sink=p.sink + math.log(2))),
    ),
    "sink scaled": ({"learnable_sink": True}, lambda p: fp64.forward(replace(p, sink=p.sink * p.scale))),
    "sink left out": ({"learnable_sink": True}, lambda p: fp64.forward(replace(p, sink=None))),
    "softcap before the scale": (
        {"softcap": 2.5},
        lambda p: fp64.forward(
            replace(p, softcap=p.softcap * p.scale)
        ),  # scale * t tanh(s / t) = ts tanh(scale s / ts)
    ),
    "heads interleaved": ({}, _interleaved_heads),
    "LSE in base 2": ({}, _in_base_2),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_twin_that_is_wrong_on_purpose_leaves_the_bound(twin):
    features, wrong = TWINS[twin]
    assert worst(fp64.forward(problem(**features)), **features) <= 1.0
    assert worst(wrong(problem(**features)), **features) > 10.0


def test_forgetting_to_rescale_leaves_the_bound(tiny_tiles, monkeypatch):
    features = {"lengths": (5, 9)}
    monkeypatch.setattr(fp64._Block, "_add", _add_without_rescaling)
    assert worst(fp64.forward(problem(**features)), **features) > 10.0


def _add_without_rescaling(block, into, factor, weights, values):
    into += weights @ values


@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_agrees_with_torch_in_float64(mask):
    """Sizes that are no multiple of a tile; torch has neither LSE nor its bound, so twice ours covers both."""
    lengths, heads, dims = (300, 700), (4, 2), (64, 32)
    features = {"none": {}, "causal": {"causal": True}, "window": {"window_size": (250, 20)}}[mask]
    inputs = draw(lengths=lengths, heads=heads, dims=dims, spread=1.0)
    q, k, v = (inputs.tensors[name].double().transpose(1, 2) for name in "qkv")
    distance = torch.arange(lengths[1]) - (torch.arange(lengths[0])[:, None] + lengths[1] - lengths[0])
    seen = {
        "none": torch.ones(lengths, dtype=torch.bool),
        "causal": distance <= 0,
        "window": (distance >= -250) & (distance <= 20),
    }[mask]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    scores = (q @ k.repeat_interleave(2, dim=1).mT / 8).masked_fill(~seen, -torch.inf)
    read = Problem.of(attention_case(**features), inputs)
    result = fp64.forward(read)
    bound = 2 * fp64.error_bound(read, score_size(inputs, 1 / 8))
    np.testing.assert_allclose(result["o"], o.transpose(1, 2), rtol=0, atol=bound * float(v.abs().max()))
    np.testing.assert_allclose(result["lse"], torch.logsumexp(scores, -1), rtol=0, atol=bound + 100 * 2.0**-53)


@pytest.mark.parametrize(("lengths", "batch"), [((0, 5), 1), ((5, 0), 1), ((0, 0), 1), ((5, 5), 0)])
@pytest.mark.parametrize("sink", [False, True])
def test_lengths_of_zero(lengths, batch, sink):
    features = {"lengths": lengths, "batch": batch, "learnable_sink": sink}
    read = problem(**features)
    result = fp64.forward(read, moments=True)
    assert result["o"].shape == (batch, lengths[0], 4, 3)
    assert not result["o"].any()
    expected = np.broadcast_to(read.sink[:, None] if sink else -np.inf, (batch, 4, lengths[0]))
    np.testing.assert_array_equal(result["lse"], expected)


def test_bits_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(fp64, "SINGLE_THREAD", 0)
    read = problem(lengths=(600, 1100), heads=(2, 1), dims=(64, 64), causal=True)
    expected = fp64.forward(read, threads=1)
    for threads, blas in [(2, 1), (3, 2), (None, 1), (None, 2)]:
        with threadpool_limits(blas, user_api="blas"):
            found = fp64.forward(read, threads=threads)
        for tensor, values in expected.items():
            np.testing.assert_array_equal(found[tensor], values)


def test_moments_follow_their_definitions(tiny_tiles):
    read = problem(lengths=(5, 9), causal=True, learnable_sink=True)
    result = fp64.forward(read, moments=True)
    inputs = draw(lengths=(5, 9), learnable_sink=True)
    q, k, v = (inputs.tensors[name].double().transpose(1, 2).numpy() for name in "qkv")
    k, v = (x.repeat(2, axis=1) for x in (k, v))
    s = np.where(np.tril(np.ones((5, 9)), 4) > 0, q @ k.swapaxes(2, 3) * read.scale, -np.inf)
    w = np.exp(s - result["lse"][..., None])
    expected = {
        "spread": np.sqrt(w**2 @ v**2).swapaxes(1, 2),
        "magnitude": (w @ np.abs(v)).swapaxes(1, 2),
        "row_max": s.max(axis=-1),
        "top_weight": w.max(axis=-1),
        "top_key": s.argmax(axis=-1),
    }
    for moment, values in expected.items():
        # Every operand is good to some 20 roundings of numbers below 30.
        np.testing.assert_allclose(result[moment], values, rtol=1e-13, err_msg=moment)


def test_moments_of_an_empty_row():
    result = fp64.forward(problem(lengths=(9, 4), causal=True), moments=True)
    assert not result["spread"][:, :5].any()
    assert not result["magnitude"][:, :5].any()
    assert not result["top_weight"][..., :5].any()
    assert (result["row_max"][..., :5] == -np.inf).all()
    assert (result["top_key"][..., :5] == -1).all()
    assert (result["top_key"][..., 5] == 0).all()
    assert (result["top_weight"][..., 5] == 1.0).all()  # one visible key
