"""Scores placed one by one: closed forms and positions, recomputed from the rounded tensors."""

import math

import numpy as np
import pytest

from fa4verify.cases.distributions.scores import leading, parts
from tests.cases.build import arrays, attention, case, nats, raw_scores

LN2 = math.log(2.0)
SIZES = {"seqlen_q": 64, "seqlen_k": 1024, "heads": 2, "head_dim": 64}
DTYPES = pytest.mark.parametrize("dtype", ["bf16", "fp16"])


@DTYPES
def test_parts_add_up_to_a_float32(dtype):
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32).astype(np.float64)
    split = parts(x, dtype)
    assert np.array_equal(split.sum(axis=-1), x)
    bits = {"bf16": 8, "fp16": 11}[dtype]
    assert np.array_equal(leading(split, bits), split)
    assert not np.array_equal(split[..., :2].sum(axis=-1), x) or dtype == "fp16"


def test_leading_rounds_to_even():
    assert list(leading(np.array([257.0, 259.0, 1.0, 0.0, -257.0]), 8)) == [256.0, 260.0, 1.0, 0.0, -256.0]


def tile_maxima(a_case):
    """Return the largest exponent (log2 units) of each tile, in the order of the visit: (batch, heads, rows, tiles)."""
    log2 = raw_scores(arrays(a_case)) * nats(a_case) / LN2
    return log2.reshape(*log2.shape[:3], -1, 128).max(axis=-1)[..., ::-1]


@DTYPES
@pytest.mark.parametrize("delta", [0.5, 0.75, 0.81, 3.9, 4.1, 7.9, 8.1, -5.0, -150.0])
def test_staircase_rises_by_delta(dtype, delta):
    maxima = tile_maxima(case("max_staircase", dtype=dtype, sizes=SIZES, delta=delta))
    rise = np.diff(maxima, axis=-1)
    # Three parts hold 24 bits of a level of at most 7 delta.
    assert np.allclose(rise, delta, rtol=0, atol=7 * abs(delta) * 2**-22)


@DTYPES
@pytest.mark.parametrize("delta", [8.0, 4.0, 16.0])
def test_staircase_meets_the_threshold_exactly_in_its_own_units(dtype, delta):
    a_case = case("max_staircase", dtype=dtype, sizes=SIZES, delta=delta, fields={"softmax_scale": LN2})
    raw = raw_scores(arrays(a_case))
    maxima = raw.reshape(*raw.shape[:3], -1, 128).max(axis=-1)[..., ::-1]
    assert np.all(np.diff(maxima, axis=-1) == delta)
    # FA4's c is exactly 1 then, so the raw score is the exponent.
    assert np.float32(LN2) * np.float32(1.44269502162933) == np.float32(1)


def test_staircase_others_differ_by_row_and_stay_below():
    raw = raw_scores(arrays(case("max_staircase", sizes=SIZES, fields={"softmax_scale": LN2}))).reshape(
        1, 2, 64, 8, 128
    )
    top = np.sort(raw, axis=-1)
    assert np.all(top[..., -1] - top[..., -2] > 4)
    assert np.all(raw.std(axis=2).reshape(-1).max() > 1)
    assert np.all((raw == raw.max(axis=-1, keepdims=True)).sum(axis=-1) == 1)


def test_staircase_column_is_where_it_is_asked_for():
    raw = raw_scores(arrays(case("max_staircase", sizes=SIZES, column=37)))
    assert np.all(raw.reshape(1, 2, 64, 8, 128).argmax(axis=-1) == 37)
    partial = raw_scores(arrays(case("max_staircase", sizes=SIZES | {"seqlen_k": 130})))
    assert np.all(partial[..., 128:].max(axis=-1) < partial[..., :128].max(axis=-1))


@DTYPES
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_repeated_maxima_tie_exactly(dtype, count):
    a_case = case("repeated_maxima", dtype=dtype, sizes=SIZES, count=count)
    tensors = arrays(a_case)
    raw = raw_scores(tensors)
    tied = raw == raw.max(axis=-1, keepdims=True)
    assert np.all(tied.sum(axis=-1) == count)
    assert tensors["v"].max() < 0
    o, _ = attention(a_case, tensors)
    mean = np.einsum("bhqk,bkhd->bqhd", tied / count, tensors["v"])
    assert np.allclose(o, mean, rtol=0, atol=1024 * 2**-18 * 1.5)
    assert not np.allclose(o, mean, rtol=0, atol=1e-6)


@DTYPES
@pytest.mark.parametrize(("name", "argument"), [("constant_rows", "delta"), ("tail_mass", "gap")])
@pytest.mark.parametrize("below", [0.0, 0.3, 0.8284, 1.0, 2.5, 10.1, 20.3])
def test_constant_rows_in_closed_form(dtype, name, argument, below):
    a_case = case(name, dtype=dtype, sizes=SIZES, **{argument: below})
    tensors = arrays(a_case)
    raw = raw_scores(tensors)
    assert np.all(raw[..., :-1] == raw[..., :1])
    gap = (raw[..., -1] - raw[..., 0]) * nats(a_case) / LN2
    assert np.allclose(gap, below, rtol=2**-19, atol=0)
    o, lse = attention(a_case, tensors)
    assert np.allclose(o, np.broadcast_to(tensors["v"][:, :1], o.shape), rtol=1e-13, atol=0)
    assert set(np.unique(tensors["v"])) == {1, 0.5, 0.25, 0.125}
    top = raw[..., -1] * nats(a_case)
    # The gap is off by 2^-19 of itself at most.
    slack = below * 2**-19 + 1e-12
    assert np.allclose(lse, top + np.log(1 + 1023 * 2.0**-below), rtol=0, atol=slack)
    assert len(np.unique(lse)) > 20


@DTYPES
def test_constant_rows_are_exact_in_float32(dtype):
    """Every partial sum in any order is a float32: the tensor core has nothing to truncate."""
    tensors = arrays(case("constant_rows", dtype=dtype, sizes=SIZES, delta=0.3))
    raw = raw_scores(tensors)
    assert np.array_equal(raw.astype(np.float32), raw)


@DTYPES
def test_onehot_ladder_climbs(dtype):
    a_case = case("onehot_ladder", dtype=dtype, sizes=SIZES)
    tensors = arrays(a_case)
    raw = raw_scores(tensors)
    assert np.all(np.isfinite(tensors["q"]))
    assert np.array_equal(raw.max(axis=-1)[0, 0], 2.0 ** (8 + np.arange(64) % 17))
    second = np.sort(raw, axis=-1)[..., -2]
    assert np.all((raw.max(axis=-1) - second) * nats(a_case) / LN2 >= 64)
    o, lse = attention(a_case, tensors)
    key = raw.argmax(axis=-1)
    assert np.array_equal(o[0, :, 0], tensors["v"][0, key[0, 0], 0])
    assert np.allclose(lse, raw.max(axis=-1) * nats(a_case), rtol=1e-15, atol=0)
    placed = raw_scores(arrays(case("onehot_ladder", dtype=dtype, sizes=SIZES, column=5)))
    assert np.all(placed.argmax(axis=-1) == 5)


@DTYPES
@pytest.mark.parametrize("head_dim", [64, 192])
@pytest.mark.parametrize("columns", [tuple(range(128)), (0, 1, 44, 127)])
def test_dominant_column_dominates_where_it_says(dtype, head_dim, columns):
    sizes = SIZES | {"seqlen_q": 300, "head_dim": head_dim}
    a_case = case("dominant_column", dtype=dtype, sizes=sizes, columns=list(columns))
    tensors = arrays(a_case)
    raw = raw_scores(tensors)
    key = raw.argmax(axis=-1)
    row = np.arange(300)
    assert np.array_equal(key[0, 0] % 128, np.asarray(columns)[row % len(columns)])
    assert np.array_equal(key[0, 0] // 128, (row // len(columns)) % 8)
    ordered = np.sort(raw, axis=-1)
    assert np.all((ordered[..., -1] - ordered[..., -2]) * nats(a_case) / LN2 >= 64)
    assert abs(ordered[..., -1]).max() <= 16
    assert np.array_equal(ordered[..., -1] * 16, np.round(ordered[..., -1] * 16))
    o, lse = attention(a_case, tensors)
    assert np.allclose(o[0, :, 1], tensors["v"][0, key[0, 1], 1], rtol=0, atol=1e-15)
    assert np.allclose(lse, ordered[..., -1] * nats(a_case), rtol=0, atol=1e-14)


def test_dominant_column_gives_residuals_of_both_signs():
    """The polynomial shows on rows where S * c - fl(max * c) is negative: about half of them."""
    raw = raw_scores(arrays(case("dominant_column", sizes=SIZES | {"seqlen_q": 512, "head_dim": 128}))).max(axis=-1)
    c = np.float32(np.float32(1 / math.sqrt(128)) * np.float32(1.44269502162933))
    exact = raw * np.float64(c)
    residual = exact - (raw.astype(np.float32) * c).astype(np.float64)
    assert 0.35 < (residual < 0).mean() < 0.65
