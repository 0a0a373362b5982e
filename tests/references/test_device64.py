"""Float64 attention by torch, on the CPU in a GPU's place: the values of fp64.py and backward.py, moments included."""

import numpy as np
import pytest
import torch

from fa4verify.references import backward, ball, ball_backward, device64, fp64
from fa4verify.references.backward import Upstream
from fa4verify.references.problem import Problem, stored

GENERATOR = np.random.Generator(np.random.Philox(3))
SINKS = np.array([0.5, -2.0, 1.0, 3.0])
PROBLEMS = {
    "plain": {},
    "causal": {"right": 0},
    "window": {"left": 20, "right": 5},
    "softcap": {"softcap": 3.0, "right": 0},
    "sink": {"sink": SINKS},
    "causal sink": {"right": 0, "sink": SINKS},
}


def drawn(*size):
    return stored(torch.from_numpy(GENERATOR.standard_normal(size)).to(torch.bfloat16))


def problem(seqlen_q, seqlen_k, **fields):
    k = (2, seqlen_k, 2)
    return Problem(drawn(2, seqlen_q, 4, 32), drawn(*k, 32), drawn(*k, 16), scale=0.3, **fields)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(device64, "BYTES", 1 << 17)


def agree(name, want, got):
    """Scores reach 10 nats, so a weight is off by some 40 * 10 * 2^-53 = 4e-14 of itself, twice over."""
    assert got.shape == want.shape, name
    finite = np.isfinite(want)
    assert np.array_equal(finite, np.isfinite(got)), name
    assert np.array_equal(want[~finite], got[~finite]), name
    size = max(1.0, float(np.abs(want[finite]).max(initial=0.0)))
    assert float(np.abs(want[finite] - got[finite]).max(initial=0.0)) <= 1e-13 * size, name


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("lengths", [(70, 130), (130, 70)])
def test_values_and_moments_are_those_of_the_cpu(name, lengths):
    given = problem(*lengths, **PROBLEMS[name])
    want, got = fp64.forward(given, moments=True), device64.forward(given, "cpu", moments=True)
    assert list(want) == list(got)
    for tensor in want:
        agree(tensor, want[tensor], got[tensor])
    upstream = Upstream(drawn(2, lengths[0], 4, 16), GENERATOR.standard_normal((2, 4, lengths[0])))
    want = backward.backward(given, upstream, moments=True)
    got = device64.backward(given, upstream, "cpu", moments=True)
    assert set(want) == set(got)
    for tensor in want:
        agree(tensor, want[tensor], got[tensor])


def test_balls_certify_it():
    given, upstream = problem(70, 130), Upstream(drawn(2, 70, 4, 16))
    radius = ball.certify(given, device64.forward(given, "cpu"), seed="a").radius
    assert 0 < radius["o"] < 1e-14
    here, there = backward.backward(given, upstream), device64.backward(given, upstream, "cpu")
    ours, theirs = (ball_backward.certify(given, upstream, found, seed="a").radius for found in (here, there))
    assert set(ours) == set(theirs)
    assert all(theirs[name] <= 4 * ours[name] for name in ours), (ours, theirs)


def test_what_is_not_finite_stays_on_the_cpu():
    given = problem(8, 16)
    assert device64.serves(given)
    given.v[0, 3, 1, 2] = 0x7F80
    assert not device64.serves(given)
    assert not device64.serves(problem(8, 0))
    assert not device64.serves(problem(8, 16, sink=np.array([0.0, 0.0, np.inf, 0.0])))
    whole = problem(8, 16)
    assert not device64.serves(whole, Upstream(drawn(2, 8, 4, 16), np.full((2, 4, 8), np.nan)))


def test_scores_too_large_to_be_computed_twice_stay_on_the_cpu():
    """One key has all the weight, so that dV is dO; here exp(score - LSE) need not be 1 where a score's ulp is 2^60."""
    given = problem(8, 16)
    for x in (given.q, given.k):
        x[...] = stored(torch.full(x.shape, 1e18, dtype=torch.bfloat16))
    assert not device64.serves(given)
    given.k[...] = stored(torch.full(given.k.shape, 2.0**-40, dtype=torch.bfloat16))
    assert device64.serves(given)
