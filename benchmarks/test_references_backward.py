"""What the truth of a backward costs: against the five float64 products that it cannot do without, in the same run.

Run alone: `pytest benchmarks/test_references_backward.py -s`. Rounds alternate and the fastest of each counts, so that
a busy machine slows both. Measured on two cores of a Xeon with AVX-512 (products at 44 GFLOP/s a core): 1.4 to 1.8 with
one thread, 1.3 to 1.6 with two; 13 MiB beside the results at 2048 and at 8192 keys; certificates 0.4 s at 1024 keys and
1.1 to 1.8 s at 8192, where two rows and two keys are all that is sampled.
"""

import subprocess
import sys
import time

import pytest
import torch
from threadpoolctl import threadpool_limits

from fa4verify.references import backward, ball_backward
from fa4verify.references.backward import Upstream
from fa4verify.references.problem import Problem, stored, widen

SEQLEN, HEAD_DIM, ROUNDS = 4096, 128, 4


def problem(seqlen=SEQLEN, dtype=torch.bfloat16, **features):
    """Return one head of normal inputs, and what comes back."""
    generator = torch.Generator().manual_seed(0)
    size = (1, seqlen, 1, HEAD_DIM)
    q, k, v, dout = (stored(torch.randn(size, generator=generator).to(dtype)) for _ in range(4))
    return Problem(q, k, v, HEAD_DIM**-0.5, **features), Upstream(dout)


def seconds(function):
    """Return the wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def products(q, k, v, dout):
    """Multiply as often as a backward: S, dP, dV, dK, dQ."""
    s, dp = q @ k.T, dout @ v.T
    return s.T @ dout, dp.T @ q, dp @ k


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threads", [1, 2])
def test_backward_costs_at_most_2_5_times_its_products(threads, dtype):
    """The bar of the project: 2.5, the forward that gives LSE and delta included."""
    read, upstream = problem(dtype=dtype)
    operands = [widen(x[0, :, 0]) for x in (read.q, read.k, read.v, upstream.dout)]
    with threadpool_limits(threads, user_api="blas"):
        rounds = [
            (seconds(lambda: products(*operands)), seconds(lambda: backward.backward(read, upstream)))
            for _ in range(ROUNDS)
        ]
    product, solved = (min(column) for column in zip(*rounds, strict=True))
    rate = 10 * SEQLEN * SEQLEN * HEAD_DIM / product / 1e9
    print(f"\n{threads} threads, {dtype}: products {rate:.0f} GFLOP/s, backward {solved / product:.2f} times as long")
    assert solved <= 2.5 * product


RESIDENT = """
import re, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, "benchmarks")
from test_references_backward import Problem, Upstream, backward, products, widen

def all_scores(read, upstream):
    q, k, v, dout = (widen(x[0, :, 0]) for x in (read.q, read.k, read.v, upstream.dout))
    return dict(zip(("dv", "dk", "dq"), products(q, k, v, dout)))

def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

solve = backward.backward if sys.argv[2] == "blocked" else all_scores
q, k, v, dout = (np.full((1, int(sys.argv[1]), 1, 128), 0x3F80, np.uint16) for _ in range(4))
solve(Problem(q[:, :64], k[:, :64], v[:, :64], 0.125), Upstream(dout[:, :64]))  # the buffers that BLAS keeps
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
before = kib("VmRSS")
result = solve(Problem(q, k, v, 0.125), Upstream(dout))
print(kib("VmHWM") - before - sum(x.nbytes for x in result.values()) // 1024)
"""


def resident(seqlen, how):
    """Return the peak of resident memory in KiB above inputs and results, in a process of its own (Linux)."""
    command = [sys.executable, "-c", RESIDENT, str(seqlen), how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_resident_memory_is_flat():
    """Blocked: the same at 8192 keys as at 2048. All scores at once, the twin: many times as much."""
    short, long = resident(2048, "blocked"), resident(8192, "blocked")
    naive = resident(8192, "naive")
    print(
        f"\nextra memory at 2048 and 8192 keys: {short / 1024:.1f} and {long / 1024:.1f} MiB, naive {naive / 1024:.0f}"
    )
    assert 0 < long <= short + 4 * 1024
    assert naive > 1000 * 1024


@pytest.mark.parametrize("features", [{}, {"right": 0}], ids=["full", "causal"])
@pytest.mark.parametrize("seqlen", [1024, 8192])
def test_certificate_is_quick(seqlen, features):
    """Every case pays for one, so seconds would be too much."""
    read, upstream = problem(seqlen, **features)
    result = backward.backward(read, upstream)
    spent = min(seconds(lambda: ball_backward.certify(read, upstream, result, seed="")) for _ in range(2))
    print(f"\ncertificate at {seqlen} keys: {spent:.2f} s")
    assert spent < 2.0
