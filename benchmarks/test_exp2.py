"""Speed of the exp2 laboratory against a hand-written C loop (exp2_loop.c, -O3 -march=native) in the same run.

Run: pytest benchmarks/test_exp2.py -s. Bars: 0.8 of the C loop's speed for evaluation of all 2^32 inputs and for the
error statistics of the 1.12e9 in [-126, 0]; a full check in 10 s on two cores. Processor time of one thread each, best
of three in turns, so that neighbours on the machine do not decide. The statistics carry an ulp histogram, e4m3 and
exact staircases that the C loop lacks, and must agree with it in what both have.
"""

import ctypes
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from fa4verify.exp2.check import check
from fa4verify.exp2.evaluate import evaluate_into
from fa4verify.exp2.sets import shipped
from fa4verify.exp2.statistics import collect, everything

ROOM = 2**14  # results stay in the first-level cache on both sides
FIRST, COUNT = 0x80000001, 0x42FC0000  # [-126, -2^-149]


@njit(nogil=True)
def sweep(first, count, out, coefficients, nearest):
    """Evaluate `count` bit patterns into the same small buffer again and again."""
    for done in range(0, count, out.size):
        evaluate_into(out, 0, first + done, 1, out.size, coefficients, nearest, False)


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """Build the C loop; skip where there is no compiler or no AVX-512."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("loop") / "loop.so"
    source = Path(__file__).with_name("exp2_loop.c")
    flags = ["-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, source, "-o", library, "-lm"], check=True)
    macros = subprocess.run([compiler, "-march=native", "-dM", "-E", "-"], input=b"", capture_output=True, check=True)
    if b"__AVX512F__" not in macros.stdout:
        pytest.skip("the C loop is written for AVX-512")
    return ctypes.CDLL(str(library))


def pointer(array):
    """Return what C takes."""
    return array.ctypes.data_as(ctypes.c_void_p)


def seconds(function):
    """Return the processor time of a call, of all threads."""
    start = time.process_time()
    function()
    return time.process_time() - start


def compared(ours, theirs):
    """Return the best times of both, taken in turns."""
    ours()  # compiles
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(3)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


@pytest.mark.parametrize("degree", [3, 5])
def test_evaluation(loop, degree):
    """All 2^32 inputs, results into a buffer in the cache."""
    chosen = shipped(degree)
    ours, theirs = np.empty(ROOM, np.float32), np.empty(ROOM, np.float32)
    c = chosen.float32

    def by_loop():
        loop.evaluate(ctypes.c_uint32(0), ctypes.c_uint64(2**32), pointer(theirs), ROOM, pointer(c), degree)

    fast, slow = compared(lambda: sweep(0, 2**32, ours, c, False), by_loop)
    print(f"\ndegree {degree}, all 2^32 inputs: {fast:.2f} s, C loop {slow:.2f} s, ratio {slow / fast:.2f}")
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    assert slow / fast >= 0.8


@pytest.mark.parametrize("degree", [3, 5])
def test_statistics(loop, degree):
    """All of [-126, 0); the C loop's own reference is good to 1e-16, 1e-8 of degree 5's errors."""
    chosen = shipped(degree)
    c, figures, kept = chosen.float32, np.zeros(7), []

    def by_loop():
        loop.statistics(ctypes.c_uint32(FIRST), ctypes.c_uint64(COUNT), pointer(c), degree, pointer(figures))

    fast, slow = compared(lambda: kept.append(collect(everything(-126, 0), chosen, threads=1)), by_loop)
    print(f"\ndegree {degree}, statistics, {COUNT} inputs: {fast:.2f} s, C loop {slow:.2f} s, ratio {slow / fast:.2f}")
    found = kept[-1]
    worst = max(found.high.max(), -found.low.min())
    got = [worst, found.total.sum(), found.square.sum(), *found.mismatches.sum(axis=0)[:2], found.down.sum()]
    assert np.allclose(got, figures[[0, 2, 3, 4, 5, 6]], rtol=1e-7, atol=0)
    assert slow / fast >= 0.8


def test_full_check():
    """What a user waits for, after the first time."""
    check(shipped(3))  # compiles
    reports = []
    used = min(seconds(lambda: reports.append(check(shipped(3)))) for _ in range(2))
    print(f"\nfull check of degree 3: {used:.1f} s of processor time, {min(r.seconds for r in reports):.1f} s of wall")
    assert used / 2 <= 10
