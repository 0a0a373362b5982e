"""What the GPU's float64 serves, and its kernels run by Triton's interpreter, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from fa4verify.references import device64
from fa4verify.references.backward import Upstream
from fa4verify.references.problem import Problem, stored


def drawn(*size):
    return stored(torch.ones(size, dtype=torch.bfloat16))


def problem(seqlen_q, seqlen_k, **fields):
    k = drawn(2, seqlen_k, 2, 16)
    return Problem(drawn(2, seqlen_q, 4, 16), k, k.copy(), scale=0.3, **fields)


def test_kernels_interpreted():
    """The interpreter is chosen when triton is first imported, which another test may have done without it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        Path(__file__).with_name("interpreted64.py"),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "7 passed" in done.stdout, done.stdout


def test_importing_it_imports_no_triton():
    told = "import sys, fa4verify.references.device64; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], timeout=120).returncode == 0


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


def test_a_softcap_far_above_its_scores_stays_on_the_cpu():
    """The kernels' tanh is off by 3 * 2^-53 of the cap, 3.4e-13 nats at 2^10; at 1e18 every score is 0."""
    assert device64.serves(problem(8, 16, softcap=2.0**10))
    assert not device64.serves(problem(8, 16, softcap=1e18))


def test_more_heads_than_a_grid_holds_stay_on_the_cpu():
    """CUDA refuses a second or third dimension of 65536; heads of a batch are one."""
    one = drawn(65535, 1, 1, 1)
    assert device64.serves(Problem(one, one.copy(), one.copy(), scale=1.0))
    more = drawn(16384, 1, 4, 1)
    assert not device64.serves(Problem(more, more.copy(), more.copy(), scale=1.0))
