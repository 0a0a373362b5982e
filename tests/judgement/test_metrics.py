"""Every metric by its definition, and for every metric an input that it alone notices."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fa4verify.arithmetic.formats import BF16, FORMATS, FP32, round_to, ulp
from fa4verify.judgement import layout, measure
from fa4verify.vocabulary import Output, Shape, Truth
from tests.judgement.attention import case, plain, problem


def test_definitions_of_o():
    p = problem()
    found = measure(p.case, p.output, p.truth)["o"]
    o, got = p.truth.tensors["o"], p.output.o.double().numpy()
    error, floor = got - o, round_to(o, BF16) - o
    rms = lambda x: math.sqrt(np.mean(x * x))  # noqa: E731
    rows = np.linalg.norm(error, axis=-1) / np.linalg.norm(o, axis=-1)
    row_means = error.mean(axis=-1).ravel()
    ulps = np.abs(error) / ulp(o, BF16)
    signed = (error / ulp(o, BF16)).mean(axis=-1).ravel()
    expected = {
        "elements": o.size,
        "nonfinite_mismatches": 0,
        "rmse": rms(error),
        "truth_rms": rms(o),
        "relative_rmse": rms(error) / rms(o),
        "gain_error": np.sum(error * o) / np.sum(o * o),
        "max_abs": np.abs(error).max(),
        "worst_row_relative_l2": rows.max(),
        "mean_error": error.mean(),
        "mean_error_standard_error": row_means.std(ddof=1) / math.sqrt(row_means.size),
        "mean_ulp": signed.mean(),
        "mean_ulp_standard_error": signed.std(ddof=1) / math.sqrt(signed.size),
        "ulp_max": ulps.max(),
        "floor_rmse": rms(floor),
        "floor_max_abs": np.abs(floor).max(),
    }
    assert {name: found.values[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    for name, share in {"ulp_p50": 0.5, "ulp_p99": 0.99, "ulp_p999": 0.999}.items():
        assert found.values[name] == pytest.approx(np.quantile(ulps, share, method="inverted_cdf"), rel=2.0**-11)
    assert set(found.values) - set(expected) == {"ulp_p50", "ulp_p99", "ulp_p999", "expected_rmse"}
    assert np.abs(error[found.where["max_abs"]]) == np.abs(error).max()
    assert ulps[found.where["ulp_max"]] == ulps.max()
    assert rows[found.where["worst_row_relative_l2"]] == rows.max()


@pytest.mark.parametrize(("dtype", "gain", "limit"), [("bf16", 2.0**-9, 1e-4), ("fp16", 2.0**-12, 1.25e-5)])
@pytest.mark.parametrize("sign", [1, -1])
def test_gain_error_sees_a_factor_that_an_rmse_does_not(dtype, gain, limit, sign):
    """A factor that moves the RMSE by less than the gate's 1.3 allows a kernel; the gain is it, to the rounding noise.

    A correctly rounded output has a gain of 0.42 u / sqrt(n) rms: 8e-6 and 1e-6 for the 40,000 elements here.
    """
    o = np.random.default_rng(0).standard_normal((1, 200, 2, 100))
    rounded = {
        name: measure(*plain(o, round_to(o * factor, FORMATS[dtype]), dtype))["o"].values
        for name, factor in (("right", 1.0), ("scaled", 1 + sign * gain))
    }
    noise = 0.42 * FORMATS[dtype].unit_roundoff / math.sqrt(o.size)
    assert abs(rounded["right"]["gain_error"]) < 4 * noise < limit
    assert rounded["scaled"]["gain_error"] == pytest.approx(sign * gain, abs=4 * noise)
    assert abs(rounded["scaled"]["gain_error"]) > 19 * limit
    assert rounded["scaled"]["rmse"] < 1.6 * rounded["right"]["rmse"]


def test_gain_error_of_a_truth_of_zeros():
    """No error is no gain; any other output of zeros has none to speak of, and a poisoned element does not count."""
    zeros = np.zeros((1, 4, 1, 2))
    assert measure(*plain(zeros, zeros))["o"].values["gain_error"] == 0.0
    assert "gain_error" not in measure(*plain(zeros, zeros + 1))["o"].values
    truth, got = np.full((1, 4, 1, 2), 2.0), np.full((1, 4, 1, 2), 3.0)
    truth[0, 0] = got[0, 0] = np.nan
    assert measure(*plain(truth, got))["o"].values["gain_error"] == 0.5


def test_mean_ulp_leaves_out_what_has_no_binade():
    """Errors of +1 and -1 ulp at 1 and 2 cancel, though not in the mean error; the element at 0 does not count."""
    truth, got = np.array([1.0, 2.0, 0.0, 0.0]), np.array([1.0 + 2**-7, 2.0 - 2**-6, 0.5, 0.5])
    values = measure(*plain(truth.reshape(1, 4, 1, 1), got.reshape(1, 4, 1, 1)))["o"].values
    assert values["mean_ulp"] == 0
    assert values["mean_error"] == pytest.approx((1 - 2**-7) / 4)
    biased = measure(*plain(truth[:2].reshape(1, 2, 1, 1), truth[:2].reshape(1, 2, 1, 1) * (1 + 2**-7)))["o"].values
    assert biased["mean_ulp"] == 1
    nothing = np.zeros((1, 2, 1, 1))
    assert "mean_ulp" not in measure(*plain(nothing, nothing))["o"].values


def test_definitions_of_lse():
    """A row of LSE is one head, a unit is one element, an ulp is float32's."""
    p = problem(heads=3)
    lse = p.truth.tensors["lse"]
    output = p.with_lse(lse + np.linspace(0, 1e-4, lse.size).reshape(lse.shape))
    found = measure(p.case, output, p.truth)["lse"]
    error = output.lse.double().numpy() - lse
    heads = np.linalg.norm(error, axis=-1) / np.linalg.norm(lse, axis=-1)
    assert found.values["worst_row_relative_l2"] == pytest.approx(heads.max())
    assert found.where["worst_row_relative_l2"] == (0, 2)
    assert found.values["mean_error_standard_error"] == pytest.approx(error.std(ddof=1) / math.sqrt(error.size))
    assert found.values["ulp_max"] == pytest.approx((np.abs(error) / ulp(lse, FP32)).max())


@pytest.mark.parametrize("chunk", [1, 7, 33, 1000])
def test_the_size_of_the_chunks_does_not_matter(chunk, monkeypatch):
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    whole = measure(p.case, p.output, p.truth, pt=p.output)
    monkeypatch.setattr(layout, "CHUNK", chunk)
    parts = measure(p.case, p.output, p.truth, pt=p.output)
    for tensor, found in whole.items():
        assert parts[tensor].values == pytest.approx(found.values, rel=1e-9, abs=1e-18)
        assert parts[tensor].where == found.where
        assert parts[tensor].classes == found.classes


# One truth and one noisy output; each mutation is noticed by the metrics named and by no other.
TRUTH = np.random.default_rng(3).standard_normal((1, 256, 1, 64))
TRUTH[:, :, :, ::16] *= 2.0**-7  # small elements: there an ulp is small too
TRUTH[:, 5] *= 16.0  # a large row: there a large error is small relative to the row
NOISE = 2.0**-12 * np.random.default_rng(4).standard_normal(TRUTH.shape)


def one_big_element(truth, noise):
    noise[0, 5, 0, np.argmax(np.abs(truth[0, 5, 0]))] = 6 * np.abs(NOISE).max()


def one_small_element(truth, noise):
    truth[0, 9, 0, 16] = 2.0**-20
    noise[0, 9, 0, 16] = 0.9 * np.abs(NOISE).max()


def one_row(truth, noise):
    noise[0, 7, 0] = 0.9 * np.abs(NOISE).max() * np.sign(noise[0, 7, 0])


def bias(truth, noise):
    noise += 0.3 * 2.0**-12


def typical_errors_up(truth, noise):
    unit = ulp(truth, BF16)
    ulps = np.abs(noise) / unit
    middle = np.median(ulps)
    raised = (ulps < 1.6 * middle) & (ulps > 0.2 * middle) & (1.6 * middle * unit < 2 * 2.0**-12)
    noise[raised] = (1.6 * middle * unit * np.sign(noise))[raised]


NOTICED = {
    one_big_element: {"max_abs"},
    one_small_element: {"ulp_max"},
    one_row: {"worst_row_relative_l2"},
    bias: {"mean_error"},
    typical_errors_up: {"ulp_p50"},
}


@pytest.mark.parametrize("mutate", NOTICED, ids=lambda mutate: mutate.__name__)
def test_a_metric_that_alone_notices(mutate):
    truth, noise = TRUTH.copy(), NOISE.copy()
    mutate(truth, noise)
    clean, dirty = _measure_o(TRUTH, NOISE), _measure_o(truth, noise)
    noticed = {name for name in WATCHED if dirty[name] > 1.5 * clean[name]}
    if abs(dirty["mean_error"]) > 5 * dirty["mean_error_standard_error"]:
        noticed.add("mean_error")
    assert noticed == NOTICED[mutate]
    assert abs(clean["mean_error"]) < 5 * clean["mean_error_standard_error"]


WATCHED = ("rmse", "relative_rmse", "max_abs", "worst_row_relative_l2", "ulp_p50", "ulp_p99", "ulp_p999", "ulp_max")


def _measure_o(truth, noise):
    """Measure an output in float64, so that its errors are the noise; ulp are those of the case's bf16."""
    given_case, _, exact = plain(truth, truth)
    return measure(given_case, Output(o=torch.from_numpy(truth + noise)), exact)["o"].values


@pytest.mark.parametrize(("metric", "count"), [("ulp_p99", 300), ("ulp_p999", 30)])
def test_a_quantile_sees_a_share_that_the_next_one_does_not(metric, count):
    """300 of 16384 elements are 1.8 %, 30 are 0.18 %; all sit where the truth is small, so that no RMSE sees them."""
    noise = np.zeros(TRUTH.shape)
    small = np.flatnonzero(np.broadcast_to(np.arange(64) % 16 == 0, TRUTH.shape))[:count]
    noise.ravel()[small] = 2.0**-12
    clean, dirty = _measure_o(TRUTH, np.zeros(TRUTH.shape)), _measure_o(TRUTH, noise)
    order = ["ulp_p50", "ulp_p99", "ulp_p999", "ulp_max"]
    for name in order:
        assert (dirty[name] > clean[name]) == (order.index(name) >= order.index(metric))


def test_rmse_sees_what_no_maximum_and_no_quantile_does():
    """Errors between the median and p99 grow up to p99: neither moves, their square sum does."""
    rng = np.random.default_rng(5)
    truth = 1.5 + 0.4 * rng.random((1, 256, 1, 64))  # one binade: an ulp is the same everywhere
    noise = 2.0**-12 * rng.standard_normal(truth.shape)
    middle, high = np.quantile(np.abs(noise), [0.5, 0.985])
    grown = noise.copy()
    grown[(np.abs(noise) > middle) & (np.abs(noise) < high)] = high
    grown *= np.where(rng.random(truth.shape) < 0.5, 1.0, -1.0)
    clean, dirty = _measure_o(truth, noise), _measure_o(truth, grown)
    assert dirty["rmse"] > 1.6 * clean["rmse"]
    for name in ("max_abs", "ulp_p50", "ulp_p99", "ulp_p999", "ulp_max"):
        assert dirty[name] == pytest.approx(clean[name], rel=0.02)


def test_a_cosine_does_not_see_half_of_one_row_gone():
    """G12: one of 64 rows halved."""
    p = problem(seqlen_q=64, heads=1, head_dim=64)
    o = p.truth.tensors["o"]
    got = o.copy()
    got[0, 17] *= 0.5
    cosine = (o * got).sum() / math.sqrt((o * o).sum() * (got * got).sum())
    found = measure(p.case, p.with_o(got), p.truth)["o"]
    assert cosine > 0.998
    assert found.values["worst_row_relative_l2"] == pytest.approx(0.5, abs=2 * BF16.unit_roundoff)
    assert found.where["worst_row_relative_l2"] == (0, 17, 0)


@pytest.mark.parametrize(
    ("truth", "got", "ulps"),
    [
        (1.0, 1.0 + 2.0**-7, 1.0),  # from 1 on an ulp of bf16 is 2^-7
        (1.0, 1.0 - 2.0**-8, 0.5),  # the neighbour below is half of the truth's ulp away
        (0.99, 252 / 256, 0.99 * 256 - 252),  # below 1 it is 2^-8
        (-3.0, -3.25, 16.0),
        (2.0**-130, 2.0**-130 + 2.0**-133, 1.0),  # subnormals have 2^-133 ...
        (0.0, 2.0**-132, 2.0),  # ... and so has zero
        (2.0**-126, 2.0**-126 - 2.0**-133, 1.0),
    ],
)
def test_ulp_are_those_of_the_truths_binade(truth, got, ulps):
    found = measure(*plain(np.full((1, 1, 1, 2), truth), np.full((1, 1, 1, 2), got)))["o"]
    assert found.values["ulp_max"] == pytest.approx(ulps, rel=1e-12)
    assert found.values["ulp_p50"] == pytest.approx(ulps, rel=2.0**-11)


def test_a_correctly_rounded_output_scores_its_floor():
    p = problem()
    found = measure(p.case, p.with_o(p.truth.tensors["o"]), p.truth)["o"].values
    assert found["rmse"] == found["floor_rmse"]
    assert found["max_abs"] == found["floor_max_abs"]
    assert found["ulp_max"] <= 0.5


def test_floor_and_expectation_do_not_depend_on_the_output():
    p = problem()
    good, bad = (measure(p.case, output, p.truth)["o"].values for output in (p.output, p.with_o(0 * p.v[:, :64])))
    for name in ("floor_rmse", "floor_max_abs", "expected_rmse", "truth_rms"):
        assert good[name] == bad[name]


def test_rows_without_a_key_must_be_zero():
    """The first 8 queries see no key: O = 0 and LSE = -inf by declaration; 1e-6 there is in no other metric."""
    p = problem(causal=True, seqlen_q=40, seqlen_k=32)
    clean = measure(p.case, p.output, p.truth)
    assert clean["lse"].classes == {"finite>finite": 64, "-inf>-inf": 16}
    assert clean["o"].values["keyless_rows_not_zero"] == 0
    got = p.output.o.double().numpy()
    got[0, 3, 1, 5] = 1e-6
    dirty = measure(p.case, p.with_o(got), p.truth)["o"].values
    assert dirty.pop("keyless_rows_not_zero") == 1
    assert dirty["rmse"] == pytest.approx(clean["o"].values["rmse"])
    assert dirty["worst_row_relative_l2"] == clean["o"].values["worst_row_relative_l2"]


def test_garbage_in_a_row_whose_truth_is_zero_is_the_worst_row():
    o = np.ones((1, 4, 1, 8))
    o[0, 2] = 0.0
    got = o.copy()
    got[0, 2] = 0.25
    found = measure(*plain(o, got))["o"]
    assert found.where["worst_row_relative_l2"] == (0, 2, 0)
    assert found.values["worst_row_relative_l2"] == pytest.approx(0.25 / math.sqrt(0.75))


def test_nothing_relative_to_a_truth_of_zeros():
    o = np.zeros((1, 2, 1, 4))
    exact, off = measure(*plain(o, o))["o"].values, measure(*plain(o, o + 0.5))["o"].values
    assert exact["relative_rmse"] == exact["worst_row_relative_l2"] == 0.0
    assert off["rmse"] == 0.5
    assert "relative_rmse" not in off
    assert "worst_row_relative_l2" not in off


def test_one_unit_has_no_standard_error():
    assert "mean_error_standard_error" not in measure(*plain(np.ones((1, 1, 1, 4)), np.ones((1, 1, 1, 4))))["o"].values


def test_what_cannot_be_measured_is_left_out():
    p = problem()
    assert set(measure(p.case, replace(p.output, lse=None), p.truth)) == {"o"}
    assert set(measure(p.case, replace(p.output, o=p.output.o[:, 1:]), p.truth)) == {"lse"}


def test_a_tensor_without_elements():
    o = np.zeros((1, 0, 2, 8))
    given_case, output, truth = plain(o, o)
    truth = replace(truth, tensors={"o": o, "lse": np.zeros((1, 2, 0))})
    output = replace(output, lse=torch.zeros(1, 2, 0))
    found = measure(given_case, output, truth, pt=output)
    assert found["o"].values == found["lse"].values == {"elements": 0.0, "nonfinite_mismatches": 0.0}


def test_strides_do_not_matter():
    p = problem()
    turned = p.output.o.transpose(1, 2).contiguous().transpose(1, 2)
    assert not turned.is_contiguous()
    assert measure(p.case, replace(p.output, o=turned), p.truth) == measure(p.case, p.output, p.truth)


ANY_FLOAT = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-133, 3e38, 65504.0, 65520.0]),
)


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(np.float64, (1, 3, 2, 4), elements=ANY_FLOAT),
    hnp.arrays(np.float64, (1, 3, 2, 4), elements=ANY_FLOAT),
    hnp.arrays(np.float64, (1, 2, 3), elements=ANY_FLOAT),
    st.sampled_from(["bf16", "fp16"]),
)
def test_no_metric_is_ever_nan_or_infinite(o, got, lse, dtype):
    given_case, _, _ = plain(o, o, dtype=dtype)
    truth = Truth({"o": o, "lse": lse})
    with np.errstate(all="raise"):  # nor does it take an overflow or a 0/0 to get there
        output = Output(o=torch.from_numpy(got).bfloat16(), lse=torch.from_numpy(lse).float())
        found = measure(given_case, output, truth)
    for metrics in found.values():
        assert all(math.isfinite(value) for value in metrics.values.values())
        assert sum(metrics.classes.values()) == metrics.values["elements"]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(8)))
def test_permuting_queries_of_both_moves_only_the_places(seed, order):
    rng = np.random.default_rng(seed)
    o = rng.standard_normal((1, 8, 2, 4))
    got = round_to(o + 2.0**-10 * rng.standard_normal(o.shape), BF16)
    straight = measure(*plain(o, got))["o"]
    turned = measure(*plain(o[:, order], got[:, order]))["o"]
    assert turned.values == pytest.approx(straight.values, rel=1e-9, abs=1e-15)
    assert turned.classes == straight.classes


def test_memory_does_not_grow_with_the_tensor():
    peaks = []
    for rows in (1024, 4096):
        o = np.ones((1, rows, 4, 128))
        given_case = case(shape=Shape(1, rows, rows, 4, 4, 128, 128))
        output = Output(o=torch.from_numpy(o).bfloat16())
        tracemalloc.start()
        measure(given_case, output, Truth({"o": o}))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Half a million and two million elements: the larger truth alone is 16 MiB, of which nothing is copied.
    assert peaks[1] < peaks[0] + 2**20
