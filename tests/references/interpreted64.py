"""Kernels of tiles64.py, by Triton's interpreter on the CPU: the values of fp64.py and backward.py, moments included.

test_device64.py runs this file with TRITON_INTERPRET=1; by itself pytest does not collect it.
"""

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fa4verify.references import backward, ball, ball_backward, device64, fp64, tiles64
from fa4verify.references.backward import Upstream
from fa4verify.references.problem import Problem, stored

# NumPy warns of infinity minus infinity and the like in lanes that are masked afterwards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
GENERATOR = np.random.Generator(np.random.Philox(3))
SINKS = np.array([0.5, -2.0])
# Lengths, (d, d_v), key heads and the rest. Tiles are 16 x 32: each has some that are full, cut off or not seen.
PROBLEMS = {
    "all keys, even tiles": ((16, 64), (16, 16), 1, {}),
    "ascending scores, equal keys": ((20, 130), (24, 8), 2, {}),
    "causal, rows without keys, sink": ((45, 20), (16, 16), 1, {"right": 0, "sink": SINKS}),
    "window, softcap": ((37, 70), (8, 40), 1, {"left": 12, "right": 3, "softcap": 3.0}),
}


def drawn(*size):
    return stored(torch.from_numpy(GENERATOR.standard_normal(size)).to(torch.bfloat16))


def problem(name):
    (rows, keys), (width, width_v), shared, fields = PROBLEMS[name]
    k = torch.from_numpy(GENERATOR.standard_normal((1, keys, shared, width)))
    q = torch.from_numpy(GENERATOR.standard_normal((1, rows, 2, width)))
    if name.startswith("ascending"):  # by 11 to 20 nats a tile: some rows rescale; the last two tie with the one before
        q = q.abs()
        k = torch.ones_like(k) * (torch.arange(keys) // 2).clamp(max=47)[None, :, None, None] / 6
    return Problem(*(stored(x.bfloat16()) for x in (q, k)), drawn(1, keys, shared, width_v), scale=0.3, **fields)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(device64, "TILES", {(64, False): (16, 32, 4, 1), (64, True): (16, 32, 4, 1)})
    monkeypatch.setattr(device64, "WEIGHTS", (16, 32, 16, 4, 1))
    monkeypatch.setattr(device64, "SOFTMAX", (16, 32, 4))
    monkeypatch.setattr(device64, "ALIGNED", 8)
    monkeypatch.setattr(device64, "BYTES", 1 << 15)  # some 30 rows


def agree(name, want, got):
    """Scores reach 10 nats, so a weight is off by some 40 * 10 * 2^-53 = 4e-14 of itself, twice over.

    Ascending scores reach 50, but their products and sums are exact.
    """
    assert got.shape == want.shape, name
    finite = np.isfinite(want)
    assert np.array_equal(finite, np.isfinite(got)), name
    assert np.array_equal(want[~finite], got[~finite]), name
    size = max(1.0, float(np.abs(want[finite]).max(initial=0.0)))
    assert float(np.abs(want[finite] - got[finite]).max(initial=0.0)) <= 1e-13 * size, name


@pytest.mark.parametrize("name", PROBLEMS)
def test_values_and_moments_are_those_of_the_cpu(name):
    given = problem(name)
    for moments in (False, True):
        want, got = fp64.forward(given, moments=moments), device64.forward(given, "cpu", moments=moments)
        assert list(want) == list(got)
        for tensor in want:
            agree(tensor, want[tensor], got[tensor])
    rows, width_v = given.q.shape[1], given.v.shape[3]
    upstream = Upstream(drawn(1, rows, 2, width_v), GENERATOR.standard_normal((1, 2, rows)))
    want = backward.backward(given, upstream, moments=True)
    got = device64.backward(given, upstream, "cpu", moments=True)
    assert set(want) == set(got)
    for tensor in want:
        agree(tensor, want[tensor], got[tensor])


def test_wide_heads_go_through_memory(monkeypatch):
    monkeypatch.setattr(device64, "FUSED", 8)
    given = problem("window, softcap")
    want, got = fp64.forward(given), device64.forward(given, "cpu")
    for tensor in want:
        agree(tensor, want[tensor], got[tensor])


def test_balls_certify_it():
    given = problem("all keys, even tiles")
    upstream = Upstream(drawn(1, 16, 2, 16))
    radius = ball.certify(given, device64.forward(given, "cpu"), seed="a").radius
    assert 0 < radius["o"] < 1e-14
    here, there = backward.backward(given, upstream), device64.backward(given, upstream, "cpu")
    ours, theirs = (ball_backward.certify(given, upstream, found, seed="a").radius for found in (here, there))
    assert set(ours) == set(theirs)
    assert all(theirs[name] <= 4 * ours[name] for name in ours), (ours, theirs)


@triton.jit
def each(X, Y, N: tl.constexpr):
    """Store the exponential of every element."""
    i = tl.arange(0, N)
    tl.store(Y + i, tiles64.exponential(tl.load(X + i)))


def test_exponential_is_good_to_one_and_a_half_units():
    """Where k changes, next to it, near 0, far below, and at random; 0 below -708 and for -inf."""
    steps = np.arange(-1000, 20) * np.log(2) / 2
    x = np.concatenate([steps, np.nextafter(steps, 9), -(10.0 ** -np.arange(20.0)), GENERATOR.uniform(-700, 16, 1988)])
    x = torch.from_numpy(x[x > -708])[:4096]
    x = torch.nn.functional.pad(x, (0, 4096 - len(x)), value=-np.inf)
    y = torch.empty_like(x)
    each[(1,)](x, y, N=4096)
    with mpmath.workprec(120):
        for given, got in zip(x.tolist(), y.tolist(), strict=True):
            exact = mpmath.exp(given) if given > -np.inf else mpmath.mpf(0)
            assert abs(got - exact) <= 1.5 * 2.0**-53 * exact, given
