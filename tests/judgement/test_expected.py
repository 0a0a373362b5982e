"""The model of a correct kernel's error against a Monte Carlo of correct kernels, and against worse ones.

The simulation below is NumPy with every rounding of FA4's forward in its place (QK and PV in k16 steps truncated to
fp32, FFMA argument, fp32 row sum in four chains, P rounded to 16 bits) and the error of MUFU drawn from its measured
statistics. It shares no code with the kernels under test.
"""

import numpy as np
import pytest
import torch

from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.judgement import measure
from fa4verify.judgement.expected import declares_emulation, lse_squared_error, o_squared_error, scale_error
from fa4verify.vocabulary import Output, Shape, Truth
from tests.judgement.attention import case, problem

QUERIES, KEYS = 128, 1024
EMULATED = [j for start in (38, 48, 58, 70, 80, 90) for j in range(start, start + 4)]


def fp32(x):
    return np.asarray(x).astype(np.float32).astype(np.float64)


def toward_zero(x):
    near = np.asarray(x).astype(np.float32)
    return np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near).astype(np.float64)


def chained(a, b):
    """Sum of k16 steps, each truncated to fp32."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for start in range(0, a.shape[1], 16):
        total = toward_zero(total + a[:, start : start + 16] @ b[start : start + 16])
    return total


def correct_kernel(q, k, v, fmt, generator, *, polynomial=False, p_error=1.0, bf16_sum=False):
    scale = q.shape[1] ** -0.5
    s = chained(q, k.T)
    m = s.max(axis=1, keepdims=True)
    c = float(np.float32(scale) * np.float32(1.44269502162933))
    x = fp32(s * c - fp32(m * c))
    e = np.exp2(x)
    e = np.where(x == 0, 1.0, e * (1 - 4.95e-8 + 3e-8 * generator.standard_normal(e.shape)))
    if polynomial:
        lanes = np.isin(np.arange(x.shape[1]) % 128, EMULATED)
        n = np.floor(x[:, lanes])
        f = x[:, lanes] - n
        e[:, lanes] = np.exp2(n) * (((0.077119089663 * f + 0.227564394474) * f + 0.695146143436) * f + 1.0)
    e = fp32(e)
    p = e + p_error * (round_to(e, fmt) - e)
    chains = (round_to(e, fmt) if bf16_sum else e).astype(np.float32).reshape(len(q), -1, 4, 2)
    sums = np.add.accumulate(chains.transpose(0, 2, 1, 3).reshape(len(q), 4, -1), axis=-1)[..., -1]
    row_sum = fp32(fp32(sums[:, 0] + sums[:, 1]) + fp32(sums[:, 2] + sums[:, 3]))
    o = round_to(fp32(chained(p, v) / row_sum[:, None]), fmt)
    lg2 = toward_zero(np.log2(row_sum) + 0.67 * 2.0**-22 * generator.uniform(-1, 1, row_sum.shape))
    return o, fp32(fp32(m[:, 0] * c + lg2) * float(np.float32(0.6931471824646)))


def drawn(distribution, dtype, head_dim, seed=7):
    generator = np.random.default_rng(seed)
    q, k, v = (generator.standard_normal((rows, head_dim)) for rows in (QUERIES, KEYS, KEYS))
    if distribution == "small scores":
        q = q / 4
    elif distribution == "large scores":
        q = q * 4
    elif distribution == "outliers":
        q, k, v = (x + 10 * generator.standard_normal(x.shape) * (generator.random(x.shape) < 1e-3) for x in (q, k, v))
    elif distribution == "positive V":
        v = np.abs(v)
    elif distribution == "common offset in K":
        k = k + 10 * generator.standard_normal(head_dim)
    return [round_to(x.astype(np.float32), FORMATS[dtype]) for x in (q, k, v)]


def ratios(distribution, dtype, head_dim, kernel="fa4-sm90", **wrong):
    """RMSE over the expected one, of O and of LSE."""
    q, k, v = drawn(distribution, dtype, head_dim)
    s = q @ k.T * head_dim**-0.5
    row_max = s.max(axis=1)
    e = np.exp(s - row_max[:, None])
    w = e / e.sum(axis=1, keepdims=True)
    truth = Truth(
        {"o": (w @ v)[None, :, None], "lse": (row_max + np.log(e.sum(axis=1)))[None, None]},
        moments={"spread": np.sqrt((w * w) @ (v * v))[None, :, None], "row_max": row_max[None, None]},
    )
    o, lse = correct_kernel(q, k, v, FORMATS[dtype], np.random.default_rng(0), **wrong)
    output = Output(o=torch.from_numpy(o[None, :, None]), lse=torch.from_numpy(lse[None, None]))
    shape = Shape(1, QUERIES, KEYS, 1, 1, head_dim, head_dim)
    found = measure(case(kernel=kernel, dtype=dtype, shape=shape), output, truth)
    return tuple(found[tensor].values["rmse"] / found[tensor].values["expected_rmse"] for tensor in ("o", "lse"))


DISTRIBUTIONS = ["normal", "small scores", "large scores", "outliers", "positive V", "common offset in K"]


@pytest.mark.parametrize("head_dim", [64, 192])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_correct_kernel_comes_out_near_one(distribution, dtype, head_dim):
    o, lse = ratios(distribution, dtype, head_dim)
    assert 0.5 < o < 1.3
    assert 0.3 < lse < 1.3


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_correct_kernel_with_emulated_columns_comes_out_near_one(distribution, dtype):
    o, lse = ratios(distribution, dtype, 128, kernel="fa4-sm100", polynomial=True)
    assert 0.5 < o < 1.3
    assert 0.2 < lse < 1.5


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("distribution", ["normal", "small scores", "common offset in K"])
def test_twice_the_error_of_p_does_not(distribution, dtype):
    o, lse = ratios(distribution, dtype, 64, p_error=2.0)
    assert o > 1.4
    assert lse < 1.3  # the row sum never saw it


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_row_sum_of_16_bit_p_shows_in_lse(distribution):
    assert ratios(distribution, "bf16", 64, bf16_sum=True)[1] > 10


def test_the_polynomial_where_none_is_declared_shows_in_lse():
    """The same output under a case without emulation: 1.8e-6 where 5e-7 is expected."""
    assert ratios("normal", "bf16", 128, kernel="fa4-sm90", polynomial=True)[1] > 2


def test_coherent_roundings_are_outside_the_model():
    """One key at 0 and all others at t = -0.3: one rounding error of P, shared by 1023 keys, does not average out."""
    p = problem(seqlen_k=1024, heads=1, q_scale=0.0, v=np.ones((1, 1024, 1, 16)))
    e = np.full(1024, 2.0**-0.3)
    e[0] = 1.0
    o = (round_to(e, FORMATS["bf16"]).sum() / e.sum()) * np.ones((1, 64, 1, 16))
    w = e / e.sum()
    truth = Truth(
        {"o": np.ones_like(o)},
        moments={"spread": np.full_like(o, np.sqrt((w * w).sum())), "row_max": np.zeros((1, 1, 64))},
    )
    found = measure(p.case, Output(o=torch.from_numpy(o)), truth)["o"].values
    assert found["mean_error"] == pytest.approx(3.0e-4, rel=0.2)  # B13's figure
    without_output_rounding = found["expected_rmse"] ** 2 - 2.0**-14 / 12
    assert found["rmse"] > 3 * np.sqrt(without_output_rounding)


def test_masked_rows_are_expected_to_be_exact():
    minus = np.full((1, 1, 2), -np.inf)
    zeros = np.zeros((1, 2, 1, 4))
    given_case = case()
    assert not lse_squared_error(given_case, minus, minus).any()
    smallest = 2.0**-133  # zero has the ulp of the subnormals
    assert o_squared_error(given_case, zeros, zeros, minus[0, 0, :, None, None]).max() == smallest**2 / 12


def test_more_spread_more_error_and_softcap_costs():
    given_case = case(shape=Shape(1, 4, 4096, 1, 1, 128, 128))
    o, row_max = np.full((1, 1), 0.5), np.full((1, 1), 3.0)
    small, large = (o_squared_error(given_case, o, np.full((1, 1), s), row_max)[0, 0] for s in (0.01, 2.0))
    assert large > 5 * small
    capped = case(shape=given_case.shape, softcap=15.0)
    assert lse_squared_error(capped, row_max + 5, row_max) > 100 * lse_squared_error(given_case, row_max + 5, row_max)


@pytest.mark.parametrize(
    ("changes", "declared"),
    [
        ({"kernel": "fa4-sm90"}, False),
        ({"kernel": "fa4-sm100"}, True),
        ({"kernel": "fa4@sm_100a"}, True),
        ({"kernel": "fa4@sm_103a"}, False),
        ({"kernel": "fa4-sm100", "options": {"ex2_emu_freq": 0}}, False),
        ({"kernel": "mine:f", "requires": ("emulated_exp2",)}, True),
        ({"kernel": "mine:f"}, False),
    ],
)
def test_who_declares_emulation(changes, declared):
    assert declares_emulation(case(**changes)) is declared


def test_the_error_of_fa4s_scale():
    """docs/fa4.md, scale: log2 e and ln 2 alone are off by -1.06e-8; for head dim 192, c is an ulp low."""
    eight = Shape(head_dim=64)
    assert scale_error(case(shape=eight)) == pytest.approx(-1.06e-8, rel=0.01)
    assert scale_error(case(softcap=30.0)) == pytest.approx(-1.06e-8, rel=0.01)
    assert abs(scale_error(case(shape=Shape(head_dim=192)))) > 3e-8
    assert scale_error(case(softmax_scale=0.0)) == pytest.approx(-1.06e-8, rel=0.01)
