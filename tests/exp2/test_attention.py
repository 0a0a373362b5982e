"""Sets inside attention: against attention written out in float64, closed forms of one-key rows, expectations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fa4verify import cases, kernels
from fa4verify.exp2.attention import INPUTS, MUFU, _pool, effects, runs
from fa4verify.exp2.sets import CoefficientSet, parse, shipped
from fa4verify.vocabulary import Case, Shape

ENDS = CoefficientSet("ends", (1.0, 0.6875, 0.25, 0.0625))  # p(1) = 2 exactly
BELOW_ONE = CoefficientSet("below", (1.0 - 2.0**-24, *shipped(3).coefficients[1:]))
NEAREST = parse("1,0.6931,0.2410,0.0558", "nearest")


def of(found, name, dtype, kind):
    return next(each for each in found if (each.name, each.dtype, each.inputs) == (name, dtype, kind))


@pytest.fixture(scope="module")
def small():
    done = []
    sets = [shipped(3), shipped(2), ENDS, BELOW_ONE, NEAREST]
    found = effects(sets, seeds=1, seqlen=160, head_dim=64, progress=done.append)
    assert sum(done) == runs(sets, 1) == 48
    assert len(found) == 48
    return found


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_errors_against_attention_written_out(small, dtype):
    """Softmax by NumPy in float64, 1e-13 off; the kernel called by name. Ratios are quotients of such figures."""
    shape = Shape(1, 160, 160, 1, 1, 64, 64)
    case = Case("explore-peaked", "forward", "fa4-sm100", INPUTS["peaked"][0], dtype, shape)
    inputs = cases.draw(case)
    q, k, v = (inputs.tensors[name][0, :, 0].double().numpy() for name in "qkv")
    s = q @ k.T / 8.0
    top = s.max(1, keepdims=True)
    p = np.exp(s - top)
    o, lse = p @ v / p.sum(1, keepdims=True), (np.log(p.sum(1)) + top[:, 0])
    tensors = [inputs.tensors[name] for name in "qkv"]
    rmse = {}
    for name, options in (("fa4:3", {}), (MUFU, {"emulated_columns": "none"})):
        stored = kernels.kernel("fa4-sm100").forward(*tensors, **options)
        before = kernels.kernel("fa4-sm100").forward(*tensors, o_dtype="fp32", **options)
        error = before.o[0, :, 0].double().numpy() - o
        rmse[name] = (
            np.sqrt(np.mean((stored.o[0, :, 0].double().numpy() - o) ** 2)),
            np.sqrt(np.mean(error**2)),
            np.sqrt(np.mean((stored.lse[0, 0].double().numpy() - lse) ** 2)),
        )
        effect = of(small, name, dtype, "peaked")
        assert (effect.o_rmse, effect.before_rmse, effect.lse_rmse) == pytest.approx(rmse[name], rel=1e-7)
        assert effect.gain == pytest.approx(np.sum(error * o) / np.sum(o * o), abs=1e-9)
    effect = of(small, "fa4:3", dtype, "peaked")
    quotients = [a / b for a, b in zip(rmse["fa4:3"], rmse[MUFU], strict=True)]
    assert [effect.o_ratio, effect.before_ratio, effect.lse_ratio] == pytest.approx(quotients, rel=1e-6)
    assert of(small, MUFU, dtype, "peaked").o_ratio == 1.0


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_rows_of_one_key(small, dtype):
    """LSE is off by ln(p(1)/2) where the residual is below 0 and the key's column emulated.

    With p0 = 1 both p(1) = 2 and reduction to nearest heal it. LSE itself, below 4 in size, is rounded by 2^-23, its
    product with ln 2 again.
    """
    rounding = 1e-6
    for degree in (2, 3):
        jump = abs(math.log(sum(shipped(degree).coefficients) / 2.0))
        assert of(small, f"fa4:{degree}", dtype, "one key").lse_max == pytest.approx(jump, abs=rounding)
    assert abs(of(small, "fa4:3", dtype, "one key").lse_max - 8.5e-5) < 1e-6
    for name in (MUFU, "ends", NEAREST.name):
        assert of(small, name, dtype, "one key").lse_max < rounding
    exact = of(small, "fa4:3", dtype, "one key")
    assert (exact.o_rmse, exact.o_ratio) == (0.0, None)  # O = V in every bit


def test_masked_scores_of_a_set_below_one(small):
    """160 keys leave a part of the second tile masked: every row is NaN; one whole tile has nothing to mask."""
    for kind in ("one key", "normal"):
        assert of(small, "below", "bf16", kind).nonfinite == 160 * 64 + 160
    whole = effects([BELOW_ONE], seeds=1, seqlen=128, head_dim=64, kinds=["normal"])
    assert of(whole, "below", "bf16", "normal").nonfinite == 0
    assert all(each.nonfinite == 0 for each in small if each.name != "below")


def test_share_of_emulated_exponentials(small):
    """160 keys in tiles of 128: freq 16 emulates 4 of 32 columns in the second and third fragment, hence 16 of 160."""
    assert of(small, MUFU, "bf16", "normal").share == 0.0
    assert of(small, "fa4:3", "bf16", "normal").share == pytest.approx(16 / 160)
    everything = effects([shipped(3)], seeds=1, seqlen=160, head_dim=64, columns="all", kinds=["normal"])
    assert of(everything, "fa4:3", "fp16", "normal").share == 1.0
    assert of(everything, "fa4:3", "fp16", "normal").lse_mean > of(small, "fa4:3", "fp16", "normal").lse_mean


def test_what_degree_3_costs():
    """At most 1.0015 in bf16 and 1.02 in fp16; degree 2 is told from it by the same limits."""
    found = effects([shipped(3), shipped(2)], seeds=4, kinds=["normal"])
    assert of(found, "fa4:3", "bf16", "normal").share == 0.1875  # two CTAs: freq 10
    for dtype, limit in (("bf16", 1.0015), ("fp16", 1.02)):
        assert of(found, "fa4:3", dtype, "normal").o_ratio <= limit
        assert of(found, "fa4:2", dtype, "normal").o_ratio > limit
    assert of(found, "fa4:3", "fp16", "normal").before_ratio == pytest.approx(1.0079, abs=0.004)  # docs/studies.md


def test_pooling():
    a = {"o_rmse": 3.0, "lse_max": 1.0, "lse_mean": 1.0, "nonfinite": 2.0}
    b = {"o_rmse": 4.0, "lse_max": 5.0, "lse_mean": -3.0, "nonfinite": 3.0}
    assert _pool([a, b]) == {"o_rmse": math.sqrt(12.5), "lse_max": 5.0, "lse_mean": -1.0, "nonfinite": 5.0}
