"""Scores of extreme size, rows that a mask leaves short, and values that say where they came from."""

import numpy as np
import pytest

from fa4verify.cases.distributions import TABLE
from fa4verify.cases.distributions.visibility import key_ranges
from tests.cases.build import arrays, attention, case, nats, raw_scores

DTYPES = pytest.mark.parametrize("dtype", ["bf16", "fp16"])


@DTYPES
@pytest.mark.parametrize("raw", [-2.45e5, -6e4, -2500.0, 2500.0, 6e4, 2.45e5])
def test_large_logits_are_integers_near_raw(dtype, raw):
    a_case = case("large_logits", dtype=dtype, raw=raw)
    tensors = arrays(a_case)
    scores = raw_scores(tensors)
    assert np.array_equal(scores, np.round(scores))
    base = np.round(raw / 512) * 512
    assert abs(scores - base).max() <= 8 * 12
    assert scores.std() == pytest.approx(12, rel=0.35)
    near = {**tensors, "q": np.concatenate([0 * tensors["q"][..., :2], tensors["q"][..., 2:]], axis=-1)}
    assert np.allclose(attention(a_case, tensors)[0], attention(a_case, near)[0], rtol=0, atol=1e-9)


@DTYPES
@pytest.mark.parametrize("depth", [8.0, 120.0, 150.0])
def test_negative_rows_are_negative(dtype, depth):
    a_case = case("negative_rows", dtype=dtype, depth=depth)
    tensors = arrays(a_case)
    scores = raw_scores(tensors) * nats(a_case)
    assert tensors["q"].min() > 0
    assert tensors["k"].max() < 0
    assert scores.mean() == pytest.approx(-depth, rel=0.05)
    if depth >= 150:
        # A maximum floored at 0 underflows: exp of the largest score is below 2^-126.
        assert scores.max() < -87.4


def test_negative_rows_are_the_same_numbers_but_for_their_draw_in_both_dtypes():
    for dtype in ("bf16", "fp16"):
        q = arrays(case("negative_rows", dtype=dtype))["q"]
        mantissa, _ = np.frexp(q)
        assert np.array_equal(mantissa * 256, np.round(mantissa * 256))


@DTYPES
def test_softcap_range_spans_the_cap(dtype):
    a_case = case("softcap_range", dtype=dtype, fields={"softcap": 15.0})
    scores = raw_scores(arrays(a_case)) * nats(a_case)
    size = abs(scores)
    assert size.min() == pytest.approx(0.1 / 4, rel=1e-3)
    assert size.max() == pytest.approx(200, rel=1e-3)
    assert 0.3 < (scores < 0).mean() < 0.7
    assert (15 * np.tanh(size / 15)).max() <= 15
    # s tanh(s), the wrong formula, is far away from c tanh(s / c) somewhere in the range.
    assert abs(15 * np.tanh(scores / 15) - abs(scores) * np.tanh(scores)).max() > 100


def test_key_ranges_against_the_definition():
    for left, right, causal, q, k in [
        (None, None, True, 5, 9),
        (2, 1, False, 7, 4),
        (3, None, True, 4, 6),
        (0, 0, False, 3, 3),
    ]:
        a_case = case(sizes={"seqlen_q": q, "seqlen_k": k}, fields={"causal": causal, "window_size": (left, right)})
        first, stop = key_ranges(a_case)
        for i in range(q):
            seen = [
                j
                for j in range(k)
                if (left is None or j >= i + k - q - left)
                and ((right is None and not causal) or j <= i + k - q + (0 if causal else right))
            ]
            assert list(range(first[i], stop[i])) == seen


def missing(a_case):
    return TABLE[a_case.distribution.name].missing(a_case)


MASKS = [
    ("fully_masked_rows", {"seqlen_q": 9, "seqlen_k": 5}, True, {"seqlen_q": 5, "seqlen_k": 9}, True),
    ("fully_masked_rows", {"seqlen_q": 9, "seqlen_k": 0}, False, {"seqlen_q": 9, "seqlen_k": 1}, False),
    ("single_key_rows", {"seqlen_q": 9, "seqlen_k": 9}, True, {"seqlen_q": 9, "seqlen_k": 9}, False),
    ("single_key_rows", {"seqlen_q": 9, "seqlen_k": 1}, False, {"seqlen_q": 9, "seqlen_k": 10}, True),
    ("first_tile_masked", {"seqlen_q": 128, "seqlen_k": 192}, True, {"seqlen_q": 128, "seqlen_k": 256}, True),
    ("ragged_varlen", {"seqlen_q": 65, "seqlen_k": 256}, False, {"seqlen_q": 128, "seqlen_k": 256}, False),
    ("dominant_column", {"seqlen_q": 8, "seqlen_k": 128}, False, {"seqlen_q": 8, "seqlen_k": 128}, True),
    ("gqa_marked", {"heads": 4, "heads_kv": 2}, False, {"heads": 4, "heads_kv": 1}, False),
    ("long_sequence", {"seqlen_k": 4096}, False, {"seqlen_k": 4095}, False),
    ("max_staircase", {"seqlen_k": 256}, False, {"seqlen_k": 1}, False),
]


@pytest.mark.parametrize(("name", "good", "good_causal", "bad", "bad_causal"), MASKS)
def test_needs_accept_and_refuse(name, good, good_causal, bad, bad_causal):
    assert missing(case(name, sizes=good, fields={"causal": good_causal})) is None
    assert missing(case(name, sizes=bad, fields={"causal": bad_causal}))


def test_softcap_range_needs_a_softcap():
    assert missing(case("softcap_range"))
    assert missing(case("softcap_range", fields={"softcap": 1.0})) is None


def test_rows_without_keys_are_zero_and_minus_infinity():
    a_case = case("fully_masked_rows", sizes={"seqlen_q": 9, "seqlen_k": 5}, fields={"causal": True})
    o, lse = attention(a_case, arrays(a_case))
    assert np.all(o[:, :4] == 0)
    assert np.all(np.isneginf(lse[..., :4]))
    assert np.all(np.isfinite(lse[..., 4:]))


def test_single_key_rows_return_the_key():
    a_case = case("single_key_rows", sizes={"seqlen_q": 64, "seqlen_k": 64}, fields={"causal": True})
    tensors = arrays(a_case)
    o, lse = attention(a_case, tensors)
    assert np.array_equal(o[:, 0], tensors["v"][:, 0])
    assert np.allclose(lse[0, :, 0], (tensors["q"][0, 0] * tensors["k"][0, 0]).sum(-1) * nats(a_case), rtol=1e-13)
    assert tensors["q"].std() == pytest.approx(5, rel=0.1)


def test_first_tile_masked_hides_the_first_visited_tile():
    a_case = case("first_tile_masked", sizes={"seqlen_q": 128, "seqlen_k": 192}, fields={"causal": True})
    first, stop = key_ranges(a_case)
    hidden = (stop > first) & (stop <= 128)
    assert hidden.sum() == 64
    assert raw_scores(arrays(a_case)).max() < 0


def test_ragged_padding_would_win():
    a_case = case("ragged_varlen", sizes={"seqlen_k": 130, "head_dim": 128})
    tensors = arrays(a_case)
    _, lse = attention(a_case, tensors)
    padded = {name: np.pad(tensors[name], ((0, 0), (0, 126), (0, 0), (0, 0))) for name in ("k", "v")}
    _, wrong = attention(a_case, {**tensors, **padded})
    assert raw_scores(tensors).max() < 0
    assert (wrong - lse).min() > 1


@DTYPES
@pytest.mark.parametrize("scores", ["normal", "fa3_outlier", "negative_rows"])
@pytest.mark.parametrize("period", [1, 4])
def test_ones_v_gives_v(dtype, scores, period):
    a_case = case("ones_v", dtype=dtype, scores=scores, period=period)
    tensors = arrays(a_case)
    o, _ = attention(a_case, tensors)
    assert np.allclose(o, tensors["v"][:, :1, :1], rtol=1e-14, atol=0)
    assert sorted(set(tensors["v"].ravel())) == sorted({2.0**-c for c in range(period)})


@pytest.mark.parametrize(("heads", "heads_kv"), [(2, 2), (14, 2), (16, 8), (64, 64)])
def test_gqa_marks_name_the_kv_head(heads, heads_kv):
    a_case = case("gqa_marked", sizes={"heads": heads, "heads_kv": heads_kv, "seqlen_q": 4, "seqlen_k": 8})
    tensors = arrays(a_case)
    o, _ = attention(a_case, tensors)
    marks = tensors["v"][0, 0, :, 0]
    assert len(set(marks)) == heads_kv
    assert np.allclose(o, marks[np.arange(heads) // (heads // heads_kv)][:, None], rtol=1e-14, atol=0)
    if heads_kv < heads:
        assert not np.allclose(o, marks[np.arange(heads) % heads_kv][:, None], rtol=1e-2)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("tensor", ["q", "k", "v"])
def test_poison_is_one_element(value, tensor):
    tensors = arrays(case("nan_inf_poison", value=value, tensor=tensor))
    assert {name: int((~np.isfinite(x)).sum()) for name, x in tensors.items()} == {
        name: int(name == tensor) for name in "qkv"
    }
    poison = tensors[tensor][~np.isfinite(tensors[tensor])]
    assert np.array_equal(poison, [float(value)], equal_nan=True)


def test_poison_in_v_reaches_one_channel():
    a_case = case("nan_inf_poison", sizes={"heads": 2})
    o, lse = attention(a_case, arrays(a_case))
    spoilt = np.isnan(o)
    assert np.all(spoilt[:, :, 0, 32])
    assert spoilt.sum() == 64
    assert np.all(np.isfinite(lse))
