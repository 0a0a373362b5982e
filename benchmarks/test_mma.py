"""Speed of the tensor-core step on one core, against a plain fp32 FMA triple loop in numba in the same run.

Run: pytest benchmarks/test_mma.py -s. The floor of 2.5 GFLOP/s (2 * M * N * K operations) is the project's own bar; the
ratio says what bit-exactness costs over the same loop nest with one rounding a term, on the same machine.
"""

import platform
import time

import numpy as np
import pytest
from numba import njit

from fa4verify.arithmetic.fma import fma
from fa4verify.arithmetic.formats import FORMATS, round_to
from fa4verify.arithmetic.mma import ARCHITECTURES, accumulate, prepare_a, prepare_b

SHAPES = {
    "128x128x128": (128, 128, 128),
    "S tile, d 64: 128x144x64": (128, 144, 64),
    "S tile, d 128: 32x128x128": (32, 128, 128),
    "PV tile: 32x128x144": (32, 128, 144),
    "d 256: 64x256x256": (64, 256, 256),
    "one row: 1x128x128": (1, 128, 128),
}


@njit
def fma_loop(a, b, C):
    """C += a.b, one fused multiply-add a term, the inner loop contiguous."""
    for m in range(a.shape[0]):
        for k in range(a.shape[1]):
            for n in range(b.shape[1]):
                C[m, n] = fma(a[m, k], b[k, n], C[m, n])


def best(function, *arguments):
    """Best of 25 runs in seconds, after one to compile."""
    function(*arguments)
    times = []
    for _ in range(25):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("name", SHAPES)
def test_accumulate_beside_an_fma_loop(name):
    """At least 2.5 GFLOP/s on tiles; prints the ratio to the loop and what preparation costs."""
    M, N, K = SHAPES[name]
    rng = np.random.default_rng(0)
    step = ARCHITECTURES["sm90"].step("bf16")
    a, b = (round_to(rng.standard_normal(s), FORMATS["bf16"]).astype(np.float32) for s in ((M, K), (K, N)))
    A, B, C = prepare_a(a, step), prepare_b(b, step), np.zeros((M, N), np.float32)
    work = 2e-9 * M * N * K
    step_time, loop_time = best(accumulate, A, B, C, True, step), best(fma_loop, a, b, C)
    a_time, b_time = best(prepare_a, a, step), best(prepare_b, b, step)
    print(
        f"\n{name}: {work / step_time:.1f} GFLOP/s, FMA loop {work / loop_time:.1f}, "
        f"ratio of times {step_time / loop_time:.2f}; "
        f"preparing a {a_time / step_time:.0%}, b {b_time / step_time:.0%} of one accumulate"
    )
    if M >= 32:
        assert work / step_time >= 2.5


@pytest.mark.parametrize(("scale", "why"), [(2.0**70, "above the window"), (2.0**-60, "below the window")])
def test_elements_outside_the_window(scale, why):
    """What the slow way costs: every element of every step goes there."""
    rng = np.random.default_rng(0)
    step = ARCHITECTURES["sm90"].step("bf16")
    a, b = (round_to(scale * rng.standard_normal((64, 64)), FORMATS["bf16"]).astype(np.float32) for _ in range(2))
    seconds = best(accumulate, prepare_a(a, step), prepare_b(b, step), np.zeros((64, 64), np.float32), False, step)
    print(f"\n{why}: {2e-9 * 64**3 / seconds:.2f} GFLOP/s")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for x86 instructions")
def test_conversions_are_packed():
    """Count truncating conversions of whole vectors: four terms of four rows, and c's."""
    step = ARCHITECTURES["sm90"].step("bf16")
    a = np.ones((16, 16), np.float32)
    fresh = njit(accumulate.py_func)  # numba shows no assembly of cached code
    fresh(prepare_a(a, step), prepare_b(a, step), np.zeros((16, 16), np.float32), False, step)
    assembly = "".join(fresh.inspect_asm().values())
    print(f"\ncvttps2dq {assembly.count('cvttps2dq')}; zmm {assembly.count('zmm')}, ymm {assembly.count('ymm')}")
    assert assembly.count("cvttps2dq") >= 16
