"""Speed of the PTX machine outside of matrix instructions, and what a second worker brings.

Run: pytest benchmarks/test_ptx.py -s. The bar of the project: 10^9 instructions of threads a second on two cores for
straight-line code. The instruction mix is that of FA4's softmax: FMA, packed FMA, max, ex2, conversions, selects.
Measured on a Xeon with AVX-512, one core: 8 to 17 ns a warp's instruction.
"""

import os
import time

import numpy as np

from tests.ptx.launches import kernel, run

CTAS, THREADS = 64, 128
STRAIGHT = (
    "ld.global.b32 %r5, [%rd5]; cvt.rn.f32.s32 %r5, %r5; mov.b32 %r6, 0f3F800000; mov.b64 %rd6, {%r5, %r6};"
    + """
    fma.rn.f32 %r7, %r5, %r6, %r6;
    max.f32 %r8, %r7, %r5;
    add.f32 %r9, %r8, %r6;
    setp.lt.s32 %p1, %r9, %r8;
    selp.b32 %r10, %r9, %r8, %p1;
    fma.rn.f32x2 %rd7, %rd6, %rd6, %rd6;
    mul.f32 %r11, %r10, %r7;
    add.s32 %r12, %r11, %r10;
    """
    * 250
    + "st.global.b32 [%rd4], %r12;"
)
SPECIAL = "ex2.approx.ftz.f32 %r12, %r11; cvt.rn.bf16x2.f32 %r13, %r12, %r11;"
SOFTMAX = STRAIGHT.replace("add.s32 %r12, %r11, %r10;", SPECIAL)


def rates(body, workers):
    """Return lane instructions a second by the clock and by processor time, the best of five launches."""
    ready = kernel(body, THREADS)
    given = np.arange(CTAS * THREADS, dtype=np.uint32)
    wall = processor = np.inf
    for _ in range(6):
        start, used = time.perf_counter(), time.process_time()
        _, statistics = run(ready, grid=CTAS, given=given, workers=workers)
        wall = min(wall, time.perf_counter() - start)
        processor = min(processor, time.process_time() - used)
    return statistics.lane_steps / wall, statistics.lane_steps / processor


def test_straight_line_code():
    """10^9 a second on two cores; two workers 1.8 times as fast as one, where nothing else runs."""
    (one, core), (two, _) = rates(STRAIGHT, 1), rates(STRAIGHT, 2)
    print(f"\nstraight: {core / 1e9:.2f} G lane instructions a second of processor time; by the clock one worker")
    print(f"{one / 1e9:.2f}, two {two / 1e9:.2f}, factor {two / one:.2f}")
    assert core >= 0.5e9
    if len(os.sched_getaffinity(0)) >= 2 and os.getloadavg()[0] < 0.5:
        assert two >= max(1e9, 1.8 * one)


def test_with_special_functions():
    """One ex2 and one conversion to bf16x2 among nine."""
    _, core = rates(SOFTMAX, 1)
    print(f"\nsoftmax mix: {core / 1e9:.2f} G lane instructions a second of processor time")
    assert core >= 0.3e9
