"""The model of a correct backward's error against a Monte Carlo of correct backwards, and against worse ones.

NumPy with every 16-bit rounding of FA4's backward in its place, chained from the forward of test_expected.py; moments
from the formulas of references/backward.py, written out. No code is shared with the kernels or the references.
"""

import numpy as np
import pytest
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.judgement import measure
from fa4verify.judgement.expected_gradients import NEEDS, gradient_model, weight_variance
from fa4verify.vocabulary import Output, Shape, Truth
from tests.judgement.attention import case
from tests.judgement.test_expected import KEYS, QUERIES, chained, correct_kernel, drawn, fp32

LOG2_E = float(np.float32(1.44269502162933))


def backward(q, k, v, dout, fmt, generator, *, dlse=0.0, ds_error=1.0, p_error=1.0, products_in_16_bits=False):
    """Return dq, dk, dv, delta; an error factor of 2 doubles that rounding."""
    o, lse = correct_kernel(q, k, v, fmt, generator)
    scale = q.shape[1] ** -0.5
    c = float(np.float32(scale) * np.float32(LOG2_E))
    p = np.exp2(fp32(chained(q, k.T) * c - fp32(lse * LOG2_E)[:, None]))
    p = fp32(p * (1 - 4.95e-8 + 3e-8 * generator.standard_normal(p.shape)))
    products = o * dout
    delta = fp32((round_to(products, fmt) if products_in_16_bits else products).sum(axis=1))
    ds = fp32(p * fp32(chained(dout, v.T) - fp32(delta - dlse)[:, None]))
    p16 = p + p_error * (round_to(p, fmt) - p)
    ds16 = ds + ds_error * (round_to(ds, fmt) - ds)
    dq, dk = round_to(fp32(chained(ds16, k) * scale), fmt), round_to(fp32(chained(ds16.T, q) * scale), fmt)
    return {"dq": dq, "dk": dk, "dv": round_to(fp32(chained(p16.T, dout)), fmt), "delta": delta}


def exact(q, k, v, dout, dlse=0.0):
    """Return the truth and its moments, shaped as the house does."""
    scale = q.shape[1] ** -0.5
    s = q @ k.T * scale
    e = np.exp(s - s.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    o, dp = p @ v, dout @ v.T
    delta = (o * dout).sum(axis=1)
    ds = p * (dp - (delta - dlse)[:, None])
    from_o, from_p = np.sqrt(((o * dout) ** 2).sum(axis=1)), np.sqrt((p**2 * dp**2).sum(axis=1))
    sigma = np.hypot(from_o, from_p)
    tensors = {"dq": scale * ds @ k, "dk": scale * ds.T @ q, "dv": p.T @ dout, "delta": delta}
    moments = {
        "dq_spread": scale * np.sqrt(ds**2 @ k**2),
        "dk_spread": scale * np.sqrt((ds**2).T @ q**2),
        "dv_spread": np.sqrt((p**2).T @ dout**2),
        "dq_from_delta": scale * sigma[:, None] * np.abs(p @ k),
        "dk_from_delta": scale * np.sqrt(((sigma[:, None] * p) ** 2).T @ q**2),
        "delta_from_o": from_o,
        "delta_from_p": from_p,
        "lse": s.max(axis=1) + np.log(e.sum(axis=1)),
    }
    return tuple({name: shaped(x) for name, x in found.items()} for found in (tensors, moments))


def shaped(x):
    return x[None, :, None] if x.ndim == 2 else x[None, None]


def ratios(distribution, dtype, head_dim=64, **wrong):
    """RMSE over the expected one, for each gradient."""
    q, k, v = drawn(distribution, dtype, head_dim)
    generator = np.random.default_rng(1)
    dout = round_to(generator.standard_normal((QUERIES, head_dim)).astype(np.float32), FORMATS[dtype])
    if distribution == "positive V":  # dP is then near delta
        dout = np.abs(dout)
    tensors, moments = exact(q, k, v, dout, dlse=wrong.get("dlse", 0.0))
    found = backward(q, k, v, dout, FORMATS[dtype], generator, **wrong)
    output = Output(**{name: torch.from_numpy(shaped(x)) for name, x in found.items()})
    shape = Shape(1, QUERIES, KEYS, 1, 1, head_dim, head_dim)
    measured = measure(
        case(operation="backward", kernel="fa4-sm90", dtype=dtype, shape=shape), output, Truth(tensors, moments=moments)
    )
    return {name: m.values["rmse"] / m.values["expected_rmse"] for name, m in measured.items()}


ALL = ["normal", "small scores", "large scores", "outliers", "positive V", "common offset in K"]
DIFFUSE = ["normal", "small scores", "common offset in K"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("distribution", ALL)
def test_a_correct_backward_comes_out_near_one(distribution, dtype):
    found = ratios(distribution, dtype)
    # Below 1 where one key's P is exactly 1 in the forward and so has no rounding error (docs/budgets.md).
    assert all(0.35 < ratio < 1.3 for ratio in found.values()), found
    if distribution in DIFFUSE:  # 128 numbers only for delta, and products whose significands are not log-uniform
        assert all(0.85 < found[name] < 1.15 for name in ("dq", "dk", "dv")), found
        assert 0.75 < found["delta"] < 1.15, found


@pytest.mark.parametrize("head_dim", [128, 192])
def test_other_head_dims_and_a_gradient_through_lse(head_dim):
    found = ratios("normal", "bf16", head_dim, dlse=3.0)
    assert all(0.75 < ratio < 1.15 for ratio in found.values()), found


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_twice_the_error_of_ds_shows_in_dq_and_dk_alone(dtype):
    right, wrong = (ratios("normal", dtype, ds_error=factor) for factor in (1.0, 2.0))
    # Output and dS have equal shares of the variance: (1 + 4) / 2 = 1.58^2.
    assert wrong["dq"] > 1.45
    assert wrong["dk"] > 1.45
    assert (wrong["dv"], wrong["delta"]) == (right["dv"], right["delta"])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_twice_the_error_of_p_shows_in_dv_alone(dtype):
    right, wrong = (ratios("normal", dtype, p_error=factor) for factor in (1.0, 2.0))
    assert wrong["dv"] > 1.45
    assert all(wrong[name] == right[name] for name in ("dq", "dk", "delta"))


def test_16_bit_products_show_in_delta_and_through_it():
    right, wrong = (ratios("common offset in K", "bf16", products_in_16_bits=on) for on in (False, True))
    assert wrong["delta"] > 1.15 * right["delta"]
    assert wrong["dq"] > 1.1 * right["dq"]  # K's common part multiplies the error of delta (hazard 32)
    assert wrong["dv"] == right["dv"]


def test_lse_far_from_zero_costs_what_its_way_to_base_2_costs():
    """Hazard 30: about 1e-7 of LSE; at 1000 nats P is off by 1e-4 in every key of the row."""
    variance = weight_variance(case(operation="backward"), np.array([[[0.0, 3.0, 1000.0, -np.inf]]]))[0, 0]
    assert variance[1] ** 0.5 < 1e-6
    assert 5e-5 < variance[2] ** 0.5 < 3e-4
    assert variance[3] == 0


def test_softcap_costs_what_tanh_costs():
    lse = np.full((1, 1, 1), 20.0)
    plain, capped = (weight_variance(case(operation="backward", softcap=c), lse)[0, 0, 0] for c in (0.0, 15.0))
    assert capped > 100 * plain


@pytest.mark.parametrize("tensor", NEEDS)
def test_without_moments_there_is_no_model(tensor):
    moments = {name: np.zeros((1, 1, 1, 1)) for name in NEEDS[tensor][:-1]}
    assert gradient_model(case(operation="backward"), tensor, moments) is None


def test_each_head_of_dsink_has_its_own_expectation():
    moments = {"dsink_from_delta": np.array([1.0, 10.0]), "lse": np.zeros((1, 2, 4))}
    model = gradient_model(case(operation="backward", shape=Shape(1, 4, 4, 2, 2)), "dsink", moments)
    small, large = model(slice(0, 1), np.array([[1.0, 1.0]]))[0]
    assert large == pytest.approx(100 * small, rel=0.01)
    # One rounding to bf16: 2^-16 / 3 * 0.541 of the variance.
    assert small == pytest.approx(2.0**-16 / 3 * 0.541, rel=0.01)
