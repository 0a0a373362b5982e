"""Profiles against NumPy's own histograms and plain loops, and faults that only a profile places."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from fa4verify.arithmetic.formats import BF16, FP32, round_to, ulp
from fa4verify.judgement import measure
from fa4verify.vocabulary import Output, Profile, Shape, Truth
from tests.judgement.attention import case, plain, problem

RNG = np.random.default_rng(7)


def profile(*arguments, tensor="o") -> Profile:
    return measure(*arguments, profiles=True)[tensor].profile


def edges(first: int, count: int) -> np.ndarray:
    """Return the bin edges that the vocabulary promises: 1, 1.5, 2, 3, 4, ... times a power of two."""
    return np.array([2.0 ** (code // 2) * (1.5 if code % 2 else 1.0) for code in range(first, first + count + 1)])


def test_errors_and_floors_are_histograms_over_half_octaves():
    p = problem()
    found = profile(p.case, p.output, p.truth)
    exact, got = p.truth.tensors["o"], p.output.o.double().numpy()
    error, floor = np.abs(got - exact), np.abs(round_to(exact, BF16) - exact)
    for counts, first, zeros, values in (
        (found.errors, found.errors_from, found.exact, error),
        (found.floors, found.floors_from, found.floor_exact, floor),
    ):
        expected, _ = np.histogram(values[values > 0], edges(first, len(counts)))
        assert list(counts) == expected.tolist()
        assert counts[0] > 0
        assert counts[-1] > 0
        assert sum(counts) + zeros == exact.size
        assert zeros == (values == 0).sum()


def test_a_value_on_an_edge_belongs_above_it():
    o = np.ones((1, 4, 1, 1))
    found = profile(*plain(o, o + np.array([0.25, 0.375, 0.5, -0.25]).reshape(o.shape)))
    assert (found.errors_from, found.errors, found.exact) == (-4, (2, 1, 1), 0)


def test_ulps_are_signed_and_show_a_truncation():
    o = RNG.standard_normal((1, 400, 1, 64))
    rounded = round_to(o, BF16)
    truncated = np.where(np.abs(rounded) > np.abs(o), rounded - np.sign(o) * ulp(o, BF16), rounded)
    right, wrong = (np.array(profile(*plain(o, got)).ulps) for got in (rounded, truncated))
    assert right.sum() == wrong.sum() == o.size
    middle = right.size // 2
    assert right[: middle - 2].sum() == right[middle + 3 :].sum() == 0, "nothing beyond half an ulp"
    quarter = np.rint(4 * (truncated - o) / ulp(o, BF16)).astype(int)
    assert [int((quarter == k).sum()) for k in range(-4, 5)] == wrong[middle - 4 : middle + 5].tolist()
    assert wrong[middle - 4] + wrong[middle + 4] > o.size / 10, "a truncation reaches a whole ulp"


def test_what_is_beyond_four_ulp_is_counted_at_the_end():
    o = np.ones((1, 2, 1, 1))
    found = profile(*plain(o, o + np.array([100.0, -100.0]).reshape(o.shape)))
    assert found.ulps[0] == found.ulps[-1] == 1


def test_the_map_has_the_worst_row_of_each_block():
    o = RNG.standard_normal((2, 50, 3, 8))
    got = round_to(o, BF16)
    got[1, 37, 2] *= 2.0
    found = profile(*plain(o, got))
    assert (len(found.rows), {len(line) for line in found.rows}) == (6, {32})
    expected = np.zeros((6, 32))
    for batch, token, head in np.ndindex(2, 50, 3):
        row = np.linalg.norm(got[batch, token, head] - o[batch, token, head]) / np.linalg.norm(o[batch, token, head])
        place = batch * 3 + head, token * 32 // 50
        expected[place] = max(expected[place], row)
    assert np.array(found.rows) == pytest.approx(16 * np.log2(expected), abs=0.51)
    assert max(max(line) for line in found.rows) == found.rows[5][37 * 32 // 50] == 0


def test_a_map_of_more_heads_than_lines_keeps_the_worst():
    o = RNG.integers(1, 9, (1, 4, 20, 2)).astype(np.float64)
    got = o.copy()
    got[0, 2, 19] *= 3.0
    found = profile(*plain(o, got))
    assert len(found.rows) == 8
    assert found.rows[-1] == (-1024, -1024, 16, -1024), "-1024 is exact, 16 is a relative error of 2"


def decided(columns: list[int], weight: float, lse: float = 1.0) -> Truth:
    rows = len(columns)
    return Truth(
        {"lse": np.full((1, 1, rows), lse)},
        radius={"lse": 1e-12},
        moments={
            "top_key": np.array(columns, dtype=np.float64).reshape(1, 1, -1),
            "top_weight": np.full((1, 1, rows), weight),
        },
    )


@pytest.mark.parametrize(("weight", "lse", "there"), [(0.9, 1.0, True), (0.5, 1.0, False), (0.9, 40.0, False)])
def test_lse_by_the_column_of_the_key_that_decides(weight, lse, there):
    columns = [5, 133, 127, 256]
    truth = decided(columns, weight, lse)
    errors = np.array([2.0**-10, 2.0**-8, 2.0**-9, 0.0])
    got = torch.from_numpy(truth.tensors["lse"] + errors).float()
    found = profile(case(shape=Shape(seqlen_q=4, seqlen_k=300)), Output(lse=got), truth, tensor="lse")
    if not there:
        assert not found.in_tile or set(found.in_tile) == {None}
        return
    assert {place: number for place, number in enumerate(found.in_tile) if number is not None} == {
        5: -8 * 16, 127: -9 * 16, 0: -1024
    }  # fmt: skip
    assert found.radius == 1e-12
    assert found.worst_key == 133


def test_gradients_of_keys_by_column():
    keys, width = 200, 16
    dk = RNG.standard_normal((1, keys, 2, width))
    got = dk.copy()
    got[:, 128 + 3] += 0.5
    a_case = case(operation="backward", dtype="bf16", shape=Shape(seqlen_q=4, seqlen_k=keys, heads=2, heads_kv=2))
    found = profile(a_case, Output(dk=torch.from_numpy(got)), Truth({"dk": dk}), tensor="dk")
    rms = math.sqrt(np.mean(dk**2))
    loud = [place for place, number in enumerate(found.in_tile) if number > -1000]
    assert loud == [3]
    # Keys 3 and 131 share the column: half of its squares are 0.25, the others 0.
    assert found.in_tile[3] == pytest.approx(16 * math.log2(math.sqrt(0.125) / rms), abs=0.51)


def test_the_octave_by_the_fraction_of_x():
    x = np.linspace(-3, 2, 4000).astype(np.float32)
    want = np.exp2(x.astype(np.float64))
    fraction = x.astype(np.float64) - np.floor(x)
    got = want * np.where(np.abs(fraction - 0.4) < 0.02, 1 + 2.0**-7, 1 + 2.0**-12)
    output = Output(y=torch.from_numpy(got))
    found = profile(case(operation="exp2", kernel="x"), output, Truth({"y": want}), tensor="y")
    assert len(found.octave) == 128
    assert {place for place, number in enumerate(found.octave) if number > -7.5 * 16} == set(range(48, 54))
    assert {number for place, number in enumerate(found.octave) if not 46 <= place <= 55} == {-12 * 16}


def test_poisoned_elements_do_not_count():
    p = problem()
    got = p.output.o.double().numpy()
    got[0, 3, 1, 5] = np.nan
    found = profile(p.case, p.with_o(got), p.truth)
    assert sum(found.errors) + found.exact == got.size - 1 == sum(found.ulps)


def test_a_profile_is_small_and_comes_back_from_json(monkeypatch):
    p = problem(seqlen_q=512, heads=8, head_dim=16)
    found = measure(p.case, p.output, p.truth, profiles=True)
    text = msgspec.json.encode(found["o"])
    assert len(text) < 4000
    assert msgspec.json.decode(text, type=type(found["o"])) == found["o"]
    assert measure(p.case, p.output, p.truth)["o"].profile is None
    from fa4verify.judgement import layout  # chunks change nothing

    monkeypatch.setattr(layout, "CHUNK", 1000)
    assert measure(p.case, p.output, p.truth, profiles=True)["o"].profile == found["o"].profile


def test_an_exact_output_and_one_without_finite_elements():
    o = round_to(RNG.standard_normal((1, 3, 1, 4)), FP32)
    found = profile(*plain(np.ones_like(o), np.ones_like(o)))
    assert (found.errors, found.exact) == ((), 12)
    p = problem()
    bad = replace(p.output, o=torch.full_like(p.output.o, math.nan))
    assert profile(p.case, bad, p.truth).errors == ()
