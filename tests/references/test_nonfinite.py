"""Non-finite inputs: IEEE arithmetic of exact attention over the visible keys, and nothing from masked ones."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fa4verify.references import fp64
from fa4verify.references.problem import Problem

NAN, INF = math.nan, math.inf


def problem(scores, values, **features):
    """One query whose score with key j is scores[j], and the value of key j (one column, or rows of columns)."""
    k = np.array(scores, float).reshape(1, -1, 1, 1)
    v = np.array(values, float).reshape(1, len(scores), 1, -1)
    return Problem(np.ones((1, 1, 1, 1)), k, v, 1.0, **features)


def solved(*arguments, tiles=(256, 512), **features):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp64, "ROWS", tiles[0])
        patch.setattr(fp64, "KEYS", tiles[1])
        result = fp64.forward(problem(*arguments, **features))
    return result["o"].ravel().tolist(), result["lse"].item()


ROWS = [
    # scores, values, O, LSE
    ([0, NAN], [1, 2], NAN, NAN),
    ([0, INF], [1, 2], NAN, INF),
    ([0, -INF], [1, 2], 1, 0.0),
    ([-INF, -INF], [1, 2], NAN, -INF),
    ([INF, NAN], [1, 2], NAN, NAN),
    ([-INF, 3], [1, 2], 2, 3.0),
    ([0, 0], [1, INF], INF, math.log(2)),
    ([0, 0], [1, -INF], -INF, math.log(2)),
    ([0, 0], [INF, -INF], NAN, math.log(2)),
    ([0, 0], [INF, INF], INF, math.log(2)),
    ([0, 0], [1, NAN], NAN, math.log(2)),
    ([0, -2000], [1, INF], INF, 0.0),  # a weight that underflows is not zero
    ([0, -INF], [1, INF], NAN, 0.0),  # one of score -inf is
    ([0, -INF], [1, NAN], NAN, 0.0),
    ([800, INF], [0, 0], NAN, INF),
    ([-800, INF, 5], [1, 0, 2], NAN, INF),
]


@pytest.mark.parametrize("tiles", [(256, 512), (1, 1)], ids=["one-tile", "a-tile-per-key"])
@pytest.mark.parametrize(("scores", "values", "o", "lse"), ROWS)
def test_follows_ieee_arithmetic_of_the_formula(scores, values, o, lse, tiles):
    for order in (1, -1):
        found_o, found_lse = solved(scores[::order], values[::order], tiles=tiles)
        np.testing.assert_array_equal(found_o, [o])
        np.testing.assert_allclose(found_lse, lse, rtol=1e-15)


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["k", "v", "q"])
def test_only_what_is_visible_matters(where, poison):
    """Row i of a causal problem sees the keys up to i; the poison sits at place 5, in one column of V."""
    generator = np.random.default_rng(0)
    arrays = {name: generator.standard_normal((1, 8, 1, 4)) for name in "qkv"}
    clean = fp64.forward(Problem(**arrays, scale=0.5, right=0), moments=True)
    arrays[where][0, 5, 0, 1] = poison
    dirty = fp64.forward(Problem(**arrays, scale=0.5, right=0), moments=True)
    touched = [5] if where == "q" else [5, 6, 7]
    untouched = [i for i in range(8) if i not in touched]
    for tensor, values in clean.items():
        axis = 1 if values.ndim == 4 else 2
        np.testing.assert_array_equal(dirty[tensor].take(untouched, axis), values.take(untouched, axis))
    if where == "v":
        np.testing.assert_array_equal(dirty["o"][0, touched, 0, 1], [poison] * 3)
        np.testing.assert_array_equal(dirty["o"][..., [0, 2, 3]], clean["o"][..., [0, 2, 3]])
        np.testing.assert_array_equal(dirty["lse"], clean["lse"])
        np.testing.assert_array_equal(dirty["spread"][0, touched, 0, 1], [abs(poison)] * 3)
    elif math.isnan(poison):
        assert np.isnan(dirty["o"][0, touched]).all()
        assert np.isnan(dirty["lse"][0, 0, touched]).all()
    else:
        # The sign of q * inf decides: weight zero, or more than everything else together.
        assert all(np.isfinite(x) or x == INF for x in dirty["lse"][0, 0, touched[1:]])
        assert not np.array_equal(dirty["lse"][0, 0, touched], clean["lse"][0, 0, touched])


def test_a_naive_product_with_masked_values_would_leak():
    """The twin: weight 0 times a masked infinity."""
    weights, values = np.array([[1.0, 0.0]]), np.array([[2.0], [INF]])
    with np.errstate(invalid="ignore"):
        assert np.isnan(weights @ values).all()
    assert solved([0, 0], [2, INF], right=-1, left=None)[0] == [2.0]


@pytest.mark.parametrize(
    ("sink", "o", "lse"),
    [
        (-INF, 2.0, 0.0),
        (INF, 0.0, INF),
        (NAN, NAN, NAN),
        (0.0, 1.0, math.log(2)),
        (3e4, 0.0, 3e4),
        (-3e4, 2.0, 0.0),
        (88.8, 0.0, 88.8),
    ],
)
def test_sinks(sink, o, lse):
    found_o, found_lse = solved([0.0], [2.0], sink=np.array([sink]))
    np.testing.assert_allclose(found_o, [o], rtol=1e-15, atol=1e-37)
    np.testing.assert_allclose(found_lse, lse, rtol=1e-15)
    # Nothing visible: declared.
    empty = problem([0.0], [2.0], right=-1, left=None, sink=np.array([sink]))
    result = fp64.forward(replace(empty, q=np.ones((1, 1, 1, 1))))
    assert result["o"].item() == 0.0
    np.testing.assert_array_equal(result["lse"].item(), sink)


def test_an_infinite_sink_takes_all_weight():
    assert solved([800.0], [2.0], sink=np.array([INF])) == ([0.0], INF)
    np.testing.assert_array_equal(solved([800.0], [INF], sink=np.array([INF]))[0], [NAN])
    np.testing.assert_array_equal(solved([INF], [2.0], sink=np.array([INF]))[0], [NAN])


def test_finite_16_bit_inputs_do_not_overflow():
    """bf16 goes to 3.4e38: scores of 1e79 and values of 3e38 are still finite in float64."""
    big = 3.3895313892515355e38
    result = fp64.forward(
        Problem(np.full((1, 1, 1, 128), big), np.full((1, 3, 1, 128), big), np.full((1, 3, 1, 2), big), 1 / 128**0.5)
    )
    np.testing.assert_allclose(result["o"], big, rtol=1e-15)
    assert np.isfinite(result["lse"]).all()
