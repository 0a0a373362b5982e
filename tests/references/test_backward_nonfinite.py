"""Gradients of non-finite inputs: IEEE arithmetic of the formulas over the visible pairs, one pair at a time."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fa4verify.references import backward, fp64
from fa4verify.references.backward import Upstream
from fa4verify.references.nonfinite import weighted_sum
from fa4verify.references.problem import Problem

NAN, INF = math.nan, math.inf
GRADIENTS = ("dq", "dk", "dv", "delta")


def pair_by_pair(read, upstream):
    """Return the gradients by loops over the visible pairs: what no weight of zero can leak into."""
    forward = fp64.forward(read)
    o, lse = forward["o"], forward["lse"]
    grads = {
        "dq": np.zeros(read.q.shape),
        "dk": np.zeros(read.k.shape),
        "dv": np.zeros(read.v.shape),
        "delta": np.zeros(lse.shape),
    }
    with np.errstate(all="ignore"):
        for h, i in np.ndindex(read.q.shape[2], read.q.shape[1]):
            (first,), (last,) = read.visible(np.array([i]))
            if first >= last:
                continue
            dout = upstream.dout[0, i, h]
            grads["delta"][0, h, i] = np.sum(o[0, i, h] * dout)
            below = grads["delta"][0, h, i] - upstream.dlse[0, h, i]
            for j in range(first, last):
                k, v = read.k[0, j, h // read.group], read.v[0, j, h // read.group]
                z, slope = np.sum(read.q[0, i, h] * k) * read.scale, 1.0
                if read.softcap:
                    bent = np.tanh(z / read.softcap)
                    z, slope = read.softcap * bent, 1 - bent * bent
                p = np.exp(z - lse[0, h, i])
                ds = (np.sum(dout * v) - below) * p * slope
                grads["dq"][0, i, h] += ds * k * read.scale
                grads["dk"][0, j, h // read.group] += ds * (read.q[0, i, h] * read.scale)
                grads["dv"][0, j, h // read.group] += p * dout
    return grads


def draw(seed=0, **features):
    generator = np.random.default_rng(seed)
    q, k, v, dout, dlse = (
        generator.standard_normal(size) for size in ((1, 5, 4, 3), (1, 6, 2, 3), (1, 6, 2, 2), (1, 5, 4, 2), (1, 4, 5))
    )
    return Problem(q, k, v, 0.7, **features), Upstream(dout, dlse)


def poisoned(read, upstream, where, place, poison):
    owner, array = (upstream, getattr(upstream, where)) if where in ("dout", "dlse") else (read, getattr(read, where))
    array = array.copy()
    array[place] = poison
    changed = replace(owner, **{where: array})
    return (read, changed) if owner is upstream else (changed, upstream)


def check(read, upstream, tiles):
    expected = pair_by_pair(read, upstream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward, "ROWS", tiles[0])
        patch.setattr(backward, "KEYS", tiles[1])
        result = backward.backward(read, upstream)
    for gradient in GRADIENTS:
        np.testing.assert_allclose(result[gradient], expected[gradient], rtol=1e-9, atol=1e-12, err_msg=gradient)
    return result


FEATURES = [
    {},
    {"right": 0},
    {"left": 1, "right": 0},
    {"right": -3},
    {"softcap": 0.9, "right": 0},
    {"sink": np.array([0.0, 1.0, -2.0, 0.5]), "left": 2},
    {"sink": np.array([INF, -INF, NAN, 0.5]), "right": 0},
]


@pytest.mark.parametrize("tiles", [(256, 256), (2, 1)], ids=str)
@pytest.mark.parametrize("where", ["q", "k", "v", "dout", "dlse"])
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_follows_ieee_arithmetic_pair_by_pair(where, poison, tiles):
    generator = np.random.default_rng(7)
    for seed, features in enumerate(FEATURES):
        read, upstream = draw(seed, **features)
        size = (upstream.dout if where == "dout" else upstream.dlse if where == "dlse" else getattr(read, where)).shape
        for count in (1, 3):
            changed = read, upstream
            for _ in range(count):
                place = tuple(int(generator.integers(n)) for n in size)
                changed = poisoned(*changed, where, place, poison)
            check(*changed, tiles)


def test_several_tensors_at_once():
    generator = np.random.default_rng(8)
    for seed, features in itertools.product(range(8), FEATURES[:6]):
        changed = draw(seed, **features)
        for where in generator.choice(["q", "k", "v", "dout", "dlse"], 2):
            owner = changed[1] if where in ("dout", "dlse") else changed[0]
            place = tuple(int(generator.integers(n)) for n in getattr(owner, where).shape)
            changed = poisoned(*changed, where, place, generator.choice([NAN, INF, -INF]))
        check(*changed, (2, 3))


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_masked_numbers_and_empty_rows_have_no_influence(poison):
    """Causal with more queries than keys: rows 0 to 3 see nothing; key 5 is seen by the last row alone."""
    read, upstream = draw(right=0)
    read = replace(read, q=np.concatenate([read.q[:, :4], read.q, read.q[:, :1]], axis=1))
    upstream = Upstream(
        np.concatenate([upstream.dout[:, :4], upstream.dout, upstream.dout[:, :1]], axis=1),
        np.concatenate([upstream.dlse[..., :4], upstream.dlse, upstream.dlse[..., :1]], axis=2),
    )
    clean = check(read, upstream, (3, 2))
    dirty = (read, upstream)
    for where, place in (("q", (0, 2)), ("dout", (0, 1)), ("dlse", (0, slice(None), 3))):
        dirty = poisoned(*dirty, where, place, poison)
    result = check(*dirty, (3, 2))
    for gradient in GRADIENTS:
        np.testing.assert_array_equal(result[gradient], clean[gradient])
    for where in ("k", "v"):
        result = check(*poisoned(read, upstream, where, (0, 5, 0), poison), (3, 2))
        for gradient, axis in (("dq", 1), ("delta", 2)):
            before = range(read.q.shape[1] - 1)
            np.testing.assert_array_equal(result[gradient].take(before, axis), clean[gradient].take(before, axis))


def test_a_weight_that_underflows_is_not_zero():
    """An infinite dP - D meets a P of exp(-2000): the exact dS is infinite, 0 * inf would be NaN."""
    k, v = np.array([0.0, -2000.0]).reshape(1, 2, 1, 1), np.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    read = Problem(np.ones((1, 1, 1, 1)), k, v, 1.0)
    result = backward.backward(read, Upstream(np.ones((1, 1, 1, 1)), np.full((1, 1, 1), INF)))
    assert result["dk"].ravel().tolist() == [INF, INF]
    result = backward.backward(read, Upstream(np.full((1, 1, 1, 1), -INF)))
    assert result["dv"].ravel().tolist() == [-INF, -INF]


@pytest.mark.parametrize(
    ("sink", "dsink"),
    [(-INF, 0.0), (INF, 3.0), (NAN, NAN), (0.0, -0.5 * (1.0 - 3.0)), (3e4, 3.0), (-3e4, 0.0)],
)
def test_sinks(sink, dsink):
    """One key of score 0 and value 2, dout = 1, dlse = 3: D = 2 / (1 + e^sink) - 3."""
    one = np.ones((1, 1, 1, 1))
    read = Problem(one, 0 * one, 2 * one, 1.0, sink=np.array([sink]))
    found = backward.backward(read, Upstream(one, np.full((1, 1, 1), 3.0)))["dsink"]
    np.testing.assert_allclose(found, [dsink], rtol=1e-14)
    # Nothing visible: LSE is the sink, whatever dout holds.
    empty = replace(read, right=-1)
    found = backward.backward(empty, Upstream(NAN * one, np.full((1, 1, 1), 3.0)))["dsink"]
    np.testing.assert_array_equal(found, [3.0] if not math.isnan(sink) else [NAN])


def test_finite_16_bit_inputs_do_not_overflow():
    big = 3.3895313892515355e38
    q, k, v, dout = (np.full((1, n, 1, 128), big) for n in (2, 3, 3, 2))
    result = backward.backward(Problem(q, k, v, 128**-0.5), Upstream(dout))
    assert all(np.isfinite(values).all() for values in result.values())


def test_weighted_sum_is_the_sum_of_products_that_are_seen():
    """The twin, a plain product with weights of 0, differs on most draws."""
    assert sum(_plain_product_differs(np.random.default_rng(seed)) for seed in range(40)) > 20


def _plain_product_differs(generator):
    choices = [0.0, -0.0, 1.0, -2.0, 3.0, INF, -INF, NAN]
    likely = [0.15, 0.05, 0.3, 0.2, 0.2, 0.04, 0.03, 0.03]
    weights, values = (generator.choice(choices, size, p=likely) for size in ((6, 4), (4, 5)))
    seen = generator.random((6, 4)) < 0.7
    with np.errstate(invalid="ignore"):
        terms = weights[:, :, None] * values[None]
        expected = np.where(seen[:, :, None], terms, 0.0).sum(axis=1)
        np.testing.assert_array_equal(weighted_sum(weights, values, seen), expected)
        np.testing.assert_array_equal(weighted_sum(weights, values, None), terms.sum(axis=1))
        return not np.array_equal(np.where(seen, weights, 0.0) @ values, expected, equal_nan=True)
