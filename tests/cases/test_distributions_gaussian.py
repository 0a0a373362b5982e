"""Distributions around the normal one, held to what their docstrings claim."""

import numpy as np
import pytest

from fa4verify.cases.distributions.gaussian import low_rank_qk, normal, scaled_normal
from fa4verify.cases.seeding import stream
from tests.cases.build import arrays, attention, case, nats, raw_scores

BIG = {"seqlen_q": 512, "seqlen_k": 512, "heads": 2, "head_dim": 128}


def test_normal_has_the_moments_of_a_normal():
    for x in arrays(case("normal", sizes=BIG)).values():
        n = x.size
        assert abs(x.mean()) < 5 / np.sqrt(n)
        assert x.var() == pytest.approx(1, abs=5 * np.sqrt(2 / n))
        assert (x**4).mean() == pytest.approx(3, abs=5 * np.sqrt(96 / n))


def test_fa3_outlier_share_and_size():
    x = np.concatenate([x.ravel() for x in arrays(case("fa3_outlier", sizes=BIG)).values()])
    # Beyond 6: an outlier of sigma sqrt(101) with probability 0.5505; the body never (2e-9 each).
    expected = 0.001 * 0.5505 * x.size
    assert (abs(x) > 6).sum() == pytest.approx(expected, abs=5 * np.sqrt(expected))
    assert (abs(np.concatenate([x.ravel() for x in arrays(case("normal", sizes=BIG)).values()])) > 6).sum() == 0


def test_fa3_outlier_without_outliers_is_normal():
    x = arrays(case("fa3_outlier", sizes=BIG, probability=0.0))["q"]
    assert x.var() == pytest.approx(1, abs=5 * np.sqrt(2 / x.size))


def test_scaled_normal_is_normal_times_the_factor_and_sets_the_logits():
    a_case, source = case("scaled_normal", factor=4.0), stream("same")
    one, four = normal(a_case, source), scaled_normal(a_case, source, 4.0)
    assert np.array_equal(scaled_normal(a_case, source, 1.0)["k"], one["k"])
    assert np.array_equal(four["v"], 4 * one["v"])
    assert np.array_equal(scaled_normal(a_case, source, 4.0, values=False)["v"], one["v"])
    scores = raw_scores(arrays(a_case)) * nats(a_case)
    assert scores.std() == pytest.approx(16, rel=0.05)


@pytest.mark.parametrize("sink", [None, 30.0, -100.0])
def test_sink_tokens_attract_and_carry_little(sink):
    a_case = case("sink_tokens", sizes=BIG, fields={"learnable_sink": True}, **({} if sink is None else {"sink": sink}))
    tensors = arrays(a_case)
    control = {name: tensors[name][..., :3] for name in ("q", "k")}
    raised = raw_scores(control) * nats(a_case)
    assert np.allclose(raised[..., :4], 8.0, rtol=2**-20)
    assert np.all(raised[..., 4:] == 0)
    assert abs(tensors["v"][:, :4]).max() < 5.5 * 2**-6
    if sink is None:
        assert len(set(tensors["learnable_sink"])) == 2
    else:
        assert np.all(tensors["learnable_sink"] == sink)


def test_massive_activations_ratio_by_channel():
    spread = arrays(case("massive_activations", sizes=BIG, channels=3, factor=50.0))["k"].std(axis=(0, 1, 2))
    assert np.all(spread[:3] > 40)
    assert np.all(spread[3:] < 1.2)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("offset", [64.0, 100.0, 256.0])
def test_k_common_offset_does_not_move_o(dtype, offset):
    a_case = case("k_common_offset", dtype=dtype, offset=offset)
    tensors = arrays(a_case)
    grid = 2.0 ** np.ceil(np.log2(offset)) / 64
    vector = np.sign(tensors["k"].mean(axis=1, keepdims=True)) * np.round(offset / grid) * grid
    own = tensors["k"] - vector
    # The sum was exact in the dtype: what is left are multiples of the grid.
    assert np.array_equal(own, np.round(own / grid) * grid)
    assert 0 < abs(own).max() <= offset / 2
    with_offset, lse = attention(a_case, tensors)
    without, lse_without = attention(a_case, {**tensors, "k": own})
    assert np.allclose(with_offset, without, rtol=0, atol=1e-11)
    moved = np.einsum("bqhd,bzhd->bhq", tensors["q"], vector) * nats(a_case)
    assert np.allclose(lse - lse_without, moved, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_low_rank_is_low(rank):
    tensors = arrays(case("low_rank_qk", sizes=BIG, dtype="fp16", rank=rank))
    for name in ("q", "k"):
        singular = np.linalg.svd(tensors[name][0, :, 0], compute_uv=False)
        # What rounding to fp16 adds: at most 2^-11 relative, as noise of spectral norm (sqrt(512) + sqrt(128)) 2^-11.
        assert singular[rank] < 4 * (22.6 + 11.4) * 2**-11
        assert singular[rank - 1] > 10
    assert tensors["q"].std() == pytest.approx(1, rel=0.6)
    assert low_rank_qk(case("low_rank_qk"), stream("x"), rank=1)["q"].shape == (1, 64, 2, 64)


def test_long_sequence_cannot_cancel():
    a_case = case("long_sequence", sizes={"seqlen_k": 4096, "seqlen_q": 32})
    tensors = arrays(a_case)
    o, _ = attention(a_case, tensors)
    size = 2.0 ** -(np.arange(64) % 4)
    for x in (tensors["v"] / size, o / size):
        assert 0.5 <= x.min() < x.max() <= 1.5
    assert (raw_scores(tensors) * nats(a_case)).std() == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("causal", [False, True])
def test_uniform_tiny_output_is_the_mean_of_v(causal):
    a_case = case("uniform_tiny_output", sizes={"seqlen_q": 256}, fields={"causal": causal})
    tensors = arrays(a_case)
    o, lse = attention(a_case, tensors)
    visible = np.arange(1, 257) if causal else np.full(256, 256)
    mean = np.cumsum(tensors["v"], axis=1)[:, visible - 1] / visible[:, None, None]
    assert np.allclose(o, mean, rtol=0, atol=1e-12)
    level = raw_scores(tensors)[..., 0] * nats(a_case)
    assert np.allclose(lse, level + np.log(visible), rtol=0, atol=1e-12)
    assert len(np.unique(lse[0, 0])) > 50


@pytest.mark.parametrize(("dtype", "exponent"), [("fp16", -16), ("bf16", -60)])
def test_tiny_values_leave_the_mean(dtype, exponent):
    a_case = case("tiny_values", dtype=dtype, exponent=exponent)
    tensors = arrays(a_case)
    o, lse = attention(a_case, tensors)
    mean = tensors["v"].mean(axis=1, keepdims=True)
    assert np.allclose(o, mean, rtol=0, atol=2.0 ** (3 * exponent + 8))
    assert np.allclose(lse, np.log(256), rtol=0, atol=2.0 ** (2 * exponent + 4) + 1e-14)
    assert 0 < abs(tensors["v"]).max() < 2.0 ** (exponent + 3)
