"""What the truth costs: against the two float64 products that it cannot do without, in the same run.

Run alone: `pytest benchmarks/test_references.py -s`. Rounds alternate and the fastest of each counts, so that a busy
machine slows both. Measured on two cores of a Xeon with AVX-512 (products at 45 GFLOP/s a core): 1.3 to 1.4 with one
thread, 1.4 to 1.9 with two.
"""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from fa4verify.references import ball, exp2, fp64
from fa4verify.references.problem import Problem, stored, widen

SEQLEN, HEAD_DIM, ROUNDS = 4096, 128, 6


def problem(seqlen=SEQLEN, dtype=torch.bfloat16):
    """Return one head of normal inputs."""
    generator = torch.Generator().manual_seed(0)
    size = (1, seqlen, 1, HEAD_DIM)
    q, k, v = (stored(torch.randn(size, generator=generator).to(dtype)) for _ in range(3))
    return Problem(q, k, v, HEAD_DIM**-0.5)


def seconds(function):
    """Return the wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("threads", [1, 2])
def test_forward_costs_at_most_2_5_times_its_products(threads, dtype):
    """The bar of the project: 2.5."""
    read = problem(dtype=dtype)
    q, k, v = (widen(x[0, :, 0]) for x in (read.q, read.k, read.v))
    with threadpool_limits(threads, user_api="blas"):
        rounds = [(seconds(lambda: (q @ k.T) @ v), seconds(lambda: fp64.forward(read))) for _ in range(ROUNDS)]
    product, forward = (min(column) for column in zip(*rounds, strict=True))
    rate = 4 * SEQLEN * SEQLEN * HEAD_DIM / product / 1e9
    print(f"\n{threads} threads, {dtype}: products {rate:.0f} GFLOP/s, forward {forward / product:.2f} times as long")
    assert forward <= 2.5 * product


RESIDENT = """
import re, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, "benchmarks")
from test_references import Problem, fp64, widen

def all_scores(read):
    q, k, v = (widen(x[0, :, 0]) for x in (read.q, read.k, read.v))
    p = np.exp(q @ k.T * read.scale)
    return {"o": p @ v / p.sum(axis=1, keepdims=True)}

def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

solve = fp64.forward if sys.argv[2] == "blocked" else all_scores
q, k, v = (np.full((1, int(sys.argv[1]), 1, 128), 0x3F80, np.uint16) for _ in range(3))
solve(Problem(q[:, :64], k[:, :64], v[:, :64], 0.125))  # the buffers that BLAS keeps
Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
before = kib("VmRSS")
result = solve(Problem(q, k, v, 0.125))
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
    assert naive > 500 * 1024


@pytest.mark.parametrize("seqlen", [1024, 8192])
def test_certificate_is_quick(seqlen):
    """Every case pays for one, so seconds would be too much."""
    read = problem(seqlen)
    result = fp64.forward(read)
    spent = seconds(lambda: ball.certify(read, result, seed=""))
    print(f"\ncertificate at {seqlen} keys: {spent:.2f} s")
    assert spent < 2.0


def test_declared_polynomial_takes_seconds_for_2_to_the_24():
    """As many inputs as there are fractions."""
    x = (-126 * np.random.default_rng(0).random(2**24)).astype(np.float32)
    spent = seconds(lambda: exp2.polynomial_exp2(x, exp2.COEFFICIENTS[3]))
    print(f"\ndeclared polynomial: {spent / x.size * 1e9:.0f} ns each, {spent:.1f} s for 2^24")
    assert spent < 10.0
