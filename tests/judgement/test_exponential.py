"""exp2's metrics against the published figures of FA4's polynomials, and its special values."""

import math

import numpy as np
import pytest
import torch

from fa4verify.judgement import judge, measure
from fa4verify.vocabulary import Output, Truth
from tests.judgement.attention import budget, case

# c1, c2, ...; c0 is 1 (FA4 4.0.0b36, utils.POLY_EX2). Written out: the metrics must not depend on our own exp2.
COEFFICIENTS = {
    1: ["0x1.d8518ap-1"],
    2: ["0x1.54e1c8p-1", "0x1.520794p-2"],
    3: ["0x1.63ea32p-1", "0x1.d20d48p-3", "0x1.3be13ap-4"],
    4: ["0x1.62d67ep-1", "0x1.ee2a1cp-3", "0x1.abd484p-5", "0x1.b83c6ep-7"],
    5: ["0x1.62e4bep-1", "0x1.ebdae6p-3", "0x1.c921acp-5", "0x1.27634cp-7", "0x1.e9b62cp-10"],
}
EXP2 = case(operation="exp2", id="exp2")


def polynomial(degree, fraction):
    """Horner in fp32; an FMA through float64 is off by a double rounding here and there, far below what is compared."""
    coefficients = [1.0, *map(float.fromhex, COEFFICIENTS[degree])]
    p = np.full(fraction.shape, coefficients[-1], dtype=np.float32)
    for c in coefficients[-2::-1]:
        p = (p.astype(np.float64) * fraction + c).astype(np.float32)
    return p


def measure_y(want, got, **moments):
    output = Output(y=torch.from_numpy(np.asarray(got, dtype=np.float32)))
    return measure(EXP2, output, Truth({"y": np.asarray(want, dtype=np.float64)}, moments=moments))["y"]


@pytest.mark.parametrize(
    ("degree", "stride", "figures"),
    [
        # max relative, rms, mean, bf16 and fp16 mismatches; on an H200 over x = -[1, 2) for all but the last two.
        (1, 8, (3.8751e-2, 2.6468e-2, 1.5935e-2, 0.95, 0.99)),
        (2, 8, (2.0756e-3, 1.4450e-3, -8.97e-8, 0.239, 0.89)),
        (3, 1, (8.7688e-5, 6.0286e-5, 8.2368e-6, 0.00997, 0.0797)),
        (4, 8, (3.0485e-6, 2.0392e-6, -3.17e-8, 0.00034, 0.0027)),
        (5, 8, (1.4432e-7, 6.3532e-8, 3.36e-9, 0.000011, 0.000087)),
    ],
)
def test_figures_of_the_polynomials(degree, stride, figures):
    """All 2^23 fractions for degree 3, every eighth for the others, whose figures then move in the last digit."""
    fraction = np.arange(0, 2**23, stride) / 2.0**23
    found = measure_y(np.exp2(fraction - 1), polynomial(degree, fraction) * np.float32(0.5)).values
    largest, rms, mean, bf16, fp16 = figures
    digits = 6e-6 if stride == 1 else 2e-4
    assert found["max_relative"] == pytest.approx(largest, rel=digits if degree < 5 else 5e-3)
    assert found["rmse_relative"] == pytest.approx(rms, rel=digits if degree < 5 else 2e-3)
    assert found["mean_relative"] == pytest.approx(mean, rel=digits, abs=2e-9)
    assert found["bf16_mismatch_rate"] == pytest.approx(bf16, rel=0.02 if degree < 5 else 0.3)
    assert found["fp16_mismatch_rate"] == pytest.approx(fp16, rel=0.02 if degree < 5 else 0.1)
    assert found["special_mismatches"] == 0
    assert "declared_mismatches" not in found
    assert "worst_row_relative_l2" not in found


def test_the_worst_input_is_named():
    fraction = np.arange(2**16) / 2.0**16
    found = measure_y(np.exp2(fraction), polynomial(3, fraction))
    assert fraction[found.where["max_relative"]] == pytest.approx(0.1008, abs=5e-4)


@pytest.mark.parametrize(
    ("want", "got", "wrong"),
    [
        (math.nan, math.nan, 0),
        (math.nan, 0.0, 1),  # FA4's polynomial
        (math.inf, math.inf, 0),
        (math.inf, math.nan, 1),
        (2.0**128, math.inf, 0),  # overflow: a float64 truth, infinite in fp32
        (2.0**128, 3e38, 1),
        (0.0, 0.0, 0),
        (0.0, -0.0, 1),
        (0.0, 1e-30, 1),
        (2.0**-126.5, 0.0, 0),  # flushed
        (2.0**-126.5, 2.0**-126.5, 0),  # gradual
        (2.0**-126.5, 4.8678e-39, 0),  # the polynomial's wrong subnormal
        (2.0**-126.5, -1e-39, 1),
        (2.0**-126.5, math.nan, 1),
        (2.0**-126, 0.0, 0),  # the smallest normal: an error of 1, not a special
    ],
)
def test_special_values(want, got, wrong):
    found = measure_y([want, 1.0], [got, 1.0])
    assert found.values["special_mismatches"] == wrong
    assert found.values["max_relative"] == (1.0 if want == 2.0**-126 else 0.0)
    assert all(math.isfinite(value) for value in found.values.values())


def test_declared_specials_replace_the_class_that_is_expected():
    """FA4 gives 0 for NaN and NaN for +inf: wrong as 2^x and counted so, right as declared."""
    want, declared = [math.nan, math.inf, 0.5, 0.0], np.array([0.0, math.nan, 0.5, 0.0])
    found = measure_y(want, declared, declared=declared)
    assert found.values["special_mismatches"] == 2
    assert found.values["declared_mismatches"] == 0
    assert found.values["nonfinite_mismatches"] == 0
    assert measure_y(want, declared).values["nonfinite_mismatches"] == 2
    ieee = measure_y(want, want, declared=declared)
    assert ieee.values["special_mismatches"] == 0
    assert ieee.values["declared_mismatches"] == 2
    assert ieee.values["nonfinite_mismatches"] == 2


def test_declared_means_bits():
    declared = np.array([0.0, 1.0, math.nan])
    got = [-0.0, np.nextafter(np.float32(1), np.float32(2)), -math.nan]
    assert measure_y(declared, got, declared=declared).values["declared_mismatches"] == 2


def test_rates_count_results_that_round_apart():
    """1 + 2^-9 rounds to 1 in bf16 and is exact in fp16; one ulp of fp32 more rounds to the same."""
    up = np.nextafter(np.float32(1 + 2.0**-9), np.float32(2))
    tie = np.nextafter(np.float32(1 + 2.0**-8), np.float32(2))
    found = measure_y([1 + 2.0**-9, 1 + 2.0**-8, 1.0, 1.0], [up, tie, 1.0, 1 + 2.0**-10]).values
    assert found["bf16_mismatch_rate"] == 0.25  # the tie at 1 + 2^-8 goes up instead of to even
    assert found["fp16_mismatch_rate"] == 0.25  # 1 + 2^-10 instead of 1


def test_a_signed_mean_is_held_by_its_magnitude():
    fraction = np.arange(2**12) / 2.0**12
    want = np.exp2(fraction)
    output = Output(y=torch.from_numpy((want * (1 - 1e-4)).astype(np.float32)))
    held = case(operation="exp2", budgets=(budget("y", "mean_relative", limit=1e-5),))
    truth = Truth({"y": want})
    verdict = judge(held, measure(held, output, truth), {}, output, truth)
    assert verdict.outcome == "FAIL"
    assert verdict.findings[0].value == pytest.approx(-1e-4, rel=1e-3)
