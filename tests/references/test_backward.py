"""backward against mpmath and torch on every feature, and twins that are wrong on purpose."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from fa4verify.references import backward, fp64, mp
from fa4verify.references.problem import Problem

from .gradients import (
    by_mpmath,
    by_torch,
    draw_backward,
    from_mpmath,
    full_matrix,
    in_bounds,
    problem_backward,
    seen_by_mp,
    worst,
)
from .problems import FEATURES, TINY_TILES, name, scale_of

BOTH = FEATURES + [{**features, "dlse": False} for features in FEATURES[::4]]


@pytest.fixture
def tiny_tiles(monkeypatch):
    for module in (fp64, backward):
        monkeypatch.setattr(module, "ROWS", TINY_TILES[0])
        monkeypatch.setattr(module, "KEYS", TINY_TILES[1])


@pytest.mark.parametrize("features", BOTH[::3], ids=name)
def test_is_within_its_bound_of_mpmath(features, tiny_tiles):
    assert worst(from_mpmath(backward.backward(*problem_backward(**features)), **features)) <= 1.0


@pytest.mark.parametrize("spread", [1e-3, 30.0])
@pytest.mark.parametrize("extra", [{}, {"softcap": 15.0}, {"learnable_sink": True}], ids=name)
def test_is_within_its_bound_for_flat_and_for_peaked_rows(spread, extra, tiny_tiles):
    """At spread 30 the cap of 15 is met: 1 - tanh^2 goes down to 1e-50, of which 1 - tanh * tanh keeps nothing."""
    features = {"lengths": (4, 14), "heads": (2, 1), "dims": (8, 2), "spread": spread, **extra}
    assert worst(from_mpmath(backward.backward(*problem_backward(**features)), **features)) <= 1.0


@pytest.mark.parametrize("tiles", [(256, 256), TINY_TILES], ids=["tiles-256x256", "tiles-3x4"])
@pytest.mark.parametrize("features", BOTH, ids=name)
def test_agrees_with_autograd_in_float64(features, tiles, monkeypatch):
    """Autograd has no bound of its own; it does the same operations without tiles, so twice ours covers both."""
    monkeypatch.setattr(backward, "ROWS", tiles[0])
    monkeypatch.setattr(backward, "KEYS", tiles[1])
    result = backward.backward(*problem_backward(**features))
    assert worst(in_bounds(result, by_torch(**features), **features)) <= 2.0


@pytest.mark.parametrize(
    "features",
    [{}, {"causal": True, "softcap": 20.0}, {"window_size": (250, 20), "learnable_sink": True}],
    ids=name,
)
def test_agrees_with_autograd_at_real_sizes(features):
    features = {"lengths": (300, 700), "dims": (64, 32), "spread": 1.0, **features}
    result = backward.backward(*problem_backward(**features))
    ratios = in_bounds(result, by_torch(**features), **features)
    assert 0 < worst(ratios) <= 2.0


QUOTIENTS = [
    {"lengths": (3, 4), "heads": (2, 1), "dims": (2, 2), "causal": True},
    {"lengths": (3, 4), "heads": (2, 1), "dims": (2, 2), "softcap": 2.5, "learnable_sink": True},
    {"lengths": (4, 3), "heads": (2, 2), "dims": (2, 1), "window_size": (1, 0), "softmax_scale": -0.7},
]


@pytest.mark.parametrize("features", QUOTIENTS, ids=name)
def test_the_second_opinion_agrees_with_difference_quotients(features):
    """Central differences of mp.forward with steps of 1e-14 are good to some 1e-28 of numbers of size 100."""
    inputs = draw_backward(**features)
    tensors = {key: tensor.double().tolist() for key, tensor in inputs.tensors.items()}

    def loss(changed, place, step):
        moved = {key: torch.tensor(tensors[key], dtype=torch.float64).numpy().astype(object) for key in tensors}
        with mpmath.workdps(mp.DIGITS):
            moved[changed][place] += step
            sink = moved.get("learnable_sink")
            o, lse = mp.forward(
                *(moved[key].tolist() for key in "qkv"),
                causal=features.get("causal", False),
                window_size=features.get("window_size", (None, None)),
                softcap=features.get("softcap", 0.0),
                learnable_sink=sink,
                softmax_scale=scale_of(features, inputs),
            )
            total = mpmath.fsum(mpmath.fdot(o[b, h, i], moved["dout"][b, i, h]) for b, h, i in o)
            return total + mpmath.fsum(x * moved["dlse"][at] for at, x in lse.items() if mpmath.isfinite(x))

    grads, step = by_mpmath(**features), mpmath.mpf(10) ** -14
    for gradient, of in (("dq", "q"), ("dk", "k"), ("dv", "v"), ("dsink", "learnable_sink")):
        for place in list(grads[gradient])[::3]:
            with mpmath.workdps(mp.DIGITS):
                quotient = (loss(of, place, step) - loss(of, place, -step)) / (2 * step)
                assert abs(quotient - grads[gradient][place]) < 1e-24


class _OneKeyTooFar(Problem):
    def visible(self, rows):
        first, last = super().visible(rows)
        return first, np.minimum(last + 1, self.k.shape[1])


class _TopLeftAligned(Problem):
    def visible(self, rows):
        return super().visible(rows - self.k.shape[1] + self.q.shape[1])


def _as(kind, p):
    return kind(p.q, p.k, p.v, p.scale, p.softcap, p.left, p.right, p.sink)


def _first_head_of_the_group(p, u):
    alone = backward.backward(replace(p, q=p.q[:, :, :: p.group]), replace(u, dout=u.dout[:, :, :: p.group], dlse=None))
    return backward.backward(p, replace(u, dlse=None)) | {key: alone[key] for key in ("dk", "dv")}


def _patched(where, attribute, value):
    def run(p, u):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, attribute, value)
            return backward.backward(p, u)

    return run


def _forward_with(**changes):
    """Return a forward of which one result is wrong."""

    def run(problem, **arguments):
        result = FORWARD(problem, **arguments)
        return result | {key: change(problem, result) for key, change in changes.items()}

    return run


def _changed(**changes):
    def run(p, u):
        result = backward.backward(p, u)
        return result | {key: change(result[key], p) for key, change in changes.items()}

    return run


def _lost_last_step(solver):
    return list(_STEPS(solver))[:-1]


_STEPS, FORWARD = backward._Solver._steps, fp64.forward
CAUSAL, SINK, CAP = {"causal": True, "lengths": (5, 9)}, {"learnable_sink": True}, {"softcap": 2.5}
TWINS = {
    "mask one key too far": (CAUSAL, lambda p, u: backward.backward(_as(_OneKeyTooFar, p), u), "dq dk dv delta"),
    "top-left aligned": (CAUSAL, lambda p, u: backward.backward(_as(_TopLeftAligned, p), u), "dq dk dv delta"),
    "dK without the scale": ({}, _changed(dk=lambda dk, p: dk / p.scale), "dk"),
    "dQ with the scale twice": ({}, _changed(dq=lambda dq, p: dq * p.scale), "dq"),
    "scale off by 2^-35": (
        {},
        lambda p, u: backward.backward(replace(p, scale=p.scale * (1 + 2.0**-35)), u),
        "dq dk dv delta",
    ),
    "dlse left out": ({}, lambda p, u: backward.backward(p, replace(u, dlse=None)), "dq dk"),
    "dlse with the wrong sign": ({}, lambda p, u: backward.backward(p, replace(u, dlse=-u.dlse)), "dq dk"),
    "delta left out": (
        {},
        _patched(fp64, "forward", _forward_with(o=lambda _, r: np.zeros_like(r["o"]))),
        "dq dk delta",
    ),
    "delta from O in bf16": (
        {},
        _patched(fp64, "forward", _forward_with(o=lambda _, r: torch.tensor(r["o"]).bfloat16().double().numpy())),
        "dq dk delta",
    ),
    "LSE in base 2": (
        {},
        _patched(fp64, "forward", _forward_with(lse=lambda _, r: r["lse"] / math.log(2))),
        "dq dk dv",
    ),
    "cap's derivative left out": (CAP, _patched(backward, "_slope", np.ones_like), "dq dk"),
    "cap's derivative not squared": (CAP, _patched(backward, "_slope", lambda x: 1 - np.tanh(np.abs(x))), "dq dk"),
    "one head of each group": ({"dlse": False}, _first_head_of_the_group, "dk dv"),
    "delta of the weights without the sink": (
        SINK,
        _patched(fp64, "forward", _forward_with(o=lambda p, _: FORWARD(replace(p, sink=None))["o"])),
        "dq dk delta dsink",
    ),
    "weights without the sink": (
        SINK,
        _patched(fp64, "forward", _forward_with(lse=lambda p, _: FORWARD(replace(p, sink=None))["lse"])),
        "dq dk dv dsink",
    ),
    "dsink of the wrong sign": (SINK, _changed(dsink=lambda dsink, _: -dsink), "dsink"),
    "dsink without dlse": (
        SINK,
        lambda p, u: backward.backward(p, u) | {"dsink": backward.backward(p, replace(u, dlse=None))["dsink"]},
        "dsink",
    ),
    "a step of tiles lost": (
        {"lengths": (9, 9)},
        _patched(backward._Solver, "_steps", _lost_last_step),
        "dq dk dv",
    ),
}  # fmt: skip


@pytest.mark.parametrize("twin", TWINS)
def test_a_twin_that_is_wrong_on_purpose_leaves_the_bound(twin, tiny_tiles):
    features, wrong, noticed = TWINS[twin]
    right = by_torch(**features)
    read, upstream = problem_backward(**features)
    assert worst(in_bounds(backward.backward(read, upstream), right, **features)) <= 2.0
    clean = backward.backward(read, upstream)
    ratios = in_bounds(wrong(read, upstream) | {"lse": clean["lse"]}, right, **features)
    assert {key for key, ratio in ratios.items() if ratio > 10.0} == set(noticed.split())


def test_a_cap_that_is_met_needs_the_stable_derivative(tiny_tiles):
    """The twin: 1 - tanh * tanh is 0 from scores of 19 caps on, where the gradient is 1e-16 of itself and not 0."""
    features = {"lengths": (4, 14), "heads": (2, 1), "dims": (8, 2), "spread": 30.0, "softcap": 15.0}
    wrong = _patched(backward, "_slope", lambda x: 1 - np.tanh(x) ** 2)(*problem_backward(**features))
    ratios = from_mpmath(wrong, **features)
    assert ratios["dq"] > 10
    assert ratios["dk"] > 10


@pytest.mark.parametrize(("lengths", "batch"), [((0, 5), 1), ((5, 0), 1), ((0, 0), 1), ((5, 5), 0)])
@pytest.mark.parametrize("sink", [False, True])
def test_lengths_of_zero(lengths, batch, sink):
    features = {"lengths": lengths, "batch": batch, "learnable_sink": sink}
    read, upstream = problem_backward(**features)
    result = backward.backward(read, upstream, moments=True)
    shapes = {"dq": read.q.shape, "dk": read.k.shape, "dv": read.v.shape, "delta": (batch, 4, lengths[0])}
    for tensor, shape in shapes.items():
        assert result[tensor].shape == shape
        assert not result[tensor].any()
    assert ("dsink" in result) == sink
    if sink:  # LSE is the sink itself
        np.testing.assert_allclose(result["dsink"], upstream.dlse.sum(axis=(0, 2)), rtol=1e-15)


@pytest.mark.parametrize("mask", [{"causal": True}, {"window_size": (-1, 0)}, {"window_size": (None, -3)}], ids=name)
@pytest.mark.parametrize("extra", [{}, {"learnable_sink": True}, {"softcap": 2.0}], ids=name)
def test_empty_rows_and_unseen_keys_are_exactly_zero(mask, extra, tiny_tiles):
    features = {"lengths": (9, 4), **mask, **extra}
    read, upstream = problem_backward(**features)
    result = backward.backward(read, upstream, moments=True)
    seen = seen_by_mp(9, 4, features)
    empty, unseen = ~seen.any(axis=1), ~seen.any(axis=0)
    assert empty.any()
    assert not result["dq"][:, empty].any()
    assert not result["delta"][:, :, empty].any()
    assert not result["dk"][:, unseen].any()
    assert not result["dv"][:, unseen].any()
    assert not any(result[moment][:, empty].any() for moment in ("dq_spread", "dq_magnitude", "dq_from_delta"))


def test_bits_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(fp64, "SINGLE_THREAD", 0)
    read, upstream = problem_backward(lengths=(600, 1100), heads=(4, 2), dims=(32, 32), causal=True, softcap=9.0)
    expected = backward.backward(read, upstream, threads=1)
    for threads, blas in [(2, 1), (3, 2), (None, 1), (None, 2)]:
        with threadpool_limits(blas, user_api="blas"):
            found = backward.backward(read, upstream, threads=threads)
        for tensor, values in expected.items():
            np.testing.assert_array_equal(found[tensor], values)


def test_tiles_of_a_step_share_neither_rows_nor_keys(tiny_tiles):
    read, upstream = problem_backward(lengths=(11, 30), heads=(6, 2), batch=2)
    places = []
    for step in backward._Solver(read, upstream, moments=False, threads=1)._steps():
        assert len({(b, h, i) for b, h, i, _ in step}) == len(step)
        assert len({(b, h // 3, j) for b, h, _, j in step}) == len(step)
        places += step
    assert len(set(places)) == len(places) == 2 * 6 * math.ceil(11 / 3) * math.ceil(30 / 4)


@pytest.mark.parametrize(("wrong", "message"), [("dout", r"dout is \(1, 5, 4, 4\), o is"), ("dlse", "dlse is")])
def test_shapes_that_do_not_fit_are_refused(wrong, message):
    read, upstream = problem_backward()
    shapes = {"dout": (1, 5, 4, 4), "dlse": (1, 5, 4)}
    with pytest.raises(ValueError, match=message):
        backward.backward(read, replace(upstream, **{wrong: np.zeros(shapes[wrong])}))


@pytest.mark.parametrize("extra", [{}, {"softcap": 2.5}, {"learnable_sink": True}, {"window_size": (2, 1)}], ids=name)
def test_moments_follow_their_definitions(extra, tiny_tiles):
    features = {"lengths": (5, 9), "causal": "window_size" not in extra, **extra}
    read, upstream = problem_backward(**features)
    result = backward.backward(read, upstream, moments=True)
    _, _, full = full_matrix(read, upstream, seen_by_mp(5, 9, features))
    p, ds, slope, q, k, dout = (full[key] for key in ("p", "ds", "slope", "q", "k", "dout"))
    o = p @ widen_values(read)
    from_o, from_p = np.sqrt(((o * dout) ** 2).sum(-1)), np.sqrt((p**2 * full["dp"] ** 2).sum(-1))
    sigma = np.hypot(from_o, from_p)
    leaning = p * slope * sigma[..., None]

    def rows(x):
        return x.swapaxes(1, 2)

    def keys(x):
        return x.reshape(1, 2, 2, *x.shape[2:]).sum(axis=2).swapaxes(1, 2)

    expected = {
        "dq_spread": rows(read.scale * np.sqrt(ds**2 @ k**2)),
        "dk_spread": read.scale * np.sqrt(keys((ds**2).swapaxes(2, 3) @ q**2)),
        "dv_spread": np.sqrt(keys((p**2).swapaxes(2, 3) @ dout**2)),
        "dq_magnitude": rows(read.scale * (np.abs(ds) @ np.abs(k))),
        "dk_magnitude": read.scale * keys(np.abs(ds).swapaxes(2, 3) @ np.abs(q)),
        "dv_magnitude": keys(p.swapaxes(2, 3) @ np.abs(dout)),
        "delta_from_o": from_o,
        "delta_from_p": from_p,
        "dq_from_delta": rows(read.scale * np.abs(leaning @ k)),
        "dk_from_delta": read.scale * np.sqrt(keys((leaning**2).swapaxes(2, 3) @ q**2)),
        "ds_max": np.abs(ds).max(axis=-1),
    }
    if read.sink is not None:
        expected["dsink_from_delta"] = np.sqrt(((full["p_sink"] * sigma) ** 2).sum(axis=(0, 2)))
    assert set(result) - {"dq", "dk", "dv", "delta", "lse", "dsink"} == set(expected)
    for moment, values in expected.items():
        # Operands are good to some 20 roundings of sums that cancel by less than a thousand.
        np.testing.assert_allclose(result[moment], values.astype(float), rtol=1e-12, atol=1e-14, err_msg=moment)


def widen_values(read):
    return backward.widen(read.v).swapaxes(1, 2).repeat(read.group, axis=1)


def test_moments_predict_the_errors_of_perturbed_stages():
    """Relative errors of +-r, signs random: 400 draws know an rms to some 4 %."""
    features = {"lengths": (6, 12), "heads": (2, 1), "causal": True, "dlse": False}
    read, upstream = problem_backward(**features)
    result = backward.backward(read, upstream, moments=True)
    clean, _, full = full_matrix(read, upstream, seen_by_mp(6, 12, features), np.float64)
    p, ds, slope, q, k, dout = (full[key] for key in ("p", "ds", "slope", "q", "k", "dout"))
    v, generator, squares = widen_values(read), np.random.default_rng(0), {}
    o = p @ v
    for _ in range(400):
        wobbly = {key: x * generator.choice([-1, 1], x.shape) for key, x in (("p", p), ("ds", ds), ("o", o))}
        delta = (wobbly["o"] * dout).sum(-1) + (wobbly["p"] * full["dp"]).sum(-1)
        lean = p * slope * delta[..., None]
        found = {
            "dq_spread": read.scale * (wobbly["ds"] @ k).swapaxes(1, 2),
            "dk_spread": read.scale * (wobbly["ds"].swapaxes(2, 3) @ q).sum(axis=1)[:, :, None],
            "dv_spread": (wobbly["p"].swapaxes(2, 3) @ dout).sum(axis=1)[:, :, None],
            "dq_from_delta": read.scale * (lean @ k).swapaxes(1, 2),
            "dk_from_delta": read.scale * (lean.swapaxes(2, 3) @ q).sum(axis=1)[:, :, None],
        }
        for moment, values in found.items():
            squares[moment] = squares.get(moment, 0.0) + values**2 / 400
    assert clean["dq"].shape == result["dq"].shape
    for moment, mean_square in squares.items():
        large = result[moment] > 1e-3 * result[moment].max()
        np.testing.assert_allclose(np.sqrt(mean_square[large]), result[moment][large], rtol=0.2, err_msg=moment)
        assert np.sqrt(mean_square.sum() / (result[moment] ** 2).sum()) == pytest.approx(1, rel=0.05)
