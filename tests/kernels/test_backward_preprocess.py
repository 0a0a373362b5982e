"""Delta, LSE in log2 units and dsink: FA4's exact order, and that another order is seen."""

import numpy as np
import pytest

from fa4verify.arithmetic import mufu
from fa4verify.kernels.emulated.backward_preprocess import preprocess, row_delta, sink_gradient, threads_of_row

from .scalar_model import LOG2_E, F, fma


def rows(count, width, seed=0):
    generator = np.random.Generator(np.random.Philox(seed))
    values = (generator.standard_normal((2, count, width)) * 4).astype(np.float16)
    return values.astype(np.float32)


def one_vector_after_the_other(o, dout, threads):
    """Return delta in the obvious order, which is not FA4's where a thread holds several vectors."""
    sums = [F(0)] * threads
    for x in range(len(o)):
        sums[x // 8 % threads] = fma(o[x], dout[x], sums[x // 8 % threads])
    while len(sums) > 1:
        sums = [F(a + b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


@pytest.mark.parametrize(
    ("head_dim", "multiple_of", "threads"),
    [
        *((8, 32, 4), (32, 32, 4), (40, 32, 8), (64, 32, 8), (72, 32, 4), (96, 32, 4), (104, 32, 16), (128, 32, 16)),
        *((192, 64, 8), (256, 64, 16), (136, 64, 8), (200, 64, 16), (128, 64, 16), (192, 32, 8)),
    ],
)
def test_threads_of_a_row(head_dim, multiple_of, threads):
    """128, 64 or 32 columns at a time, whichever divides the padded head dim."""
    assert threads_of_row(head_dim, multiple_of) == threads


@pytest.mark.parametrize("width", [64, 128])
def test_one_vector_a_thread_leaves_one_order(width):
    o, dout = rows(50, width)
    threads = threads_of_row(width, 32)
    for a, b in zip(o, dout, strict=True):
        assert row_delta(a, b, threads) == one_vector_after_the_other(a, b, threads)


@pytest.mark.parametrize("width", [96, 192, 256])
def test_columns_come_before_vectors(width):
    o, dout = rows(50, width)
    threads = threads_of_row(width, 32 if width < 128 else 64)
    different = 0
    for a, b in zip(o, dout, strict=True):
        sums = [F(0)] * threads
        for column in range(8):
            for start in range(0, width, 8):
                t = start // 8 % threads
                sums[t] = fma(a[start + column], b[start + column], sums[t])
        step = 1
        while step < threads:
            sums = [F(sums[i] + sums[i ^ step]) for i in range(threads)]
            step *= 2
        assert row_delta(a, b, threads) == sums[0]
        assert len({float(x) for x in sums}) == 1, "all lanes of a butterfly agree"
        different += row_delta(a, b, threads) != one_vector_after_the_other(a, b, threads)
    assert different > 5


def test_rows():
    o, dout = rows(4, 64)
    lse = np.array([1.5, -np.inf, np.inf, np.nan], np.float32)
    dlse = np.array([0.25, 1.0, 0.0, -2.0], np.float32)
    delta, lse_log2 = np.empty(4, np.float32), np.empty(4, np.float32)
    preprocess(o, dout, lse, dlse, 8, delta, lse_log2)
    assert [F(row_delta(a, b, 8) - d) for a, b, d in zip(o, dout, dlse, strict=True)] == delta.tolist()
    assert np.array_equal(lse_log2, [F(F(1.5) * LOG2_E), 0, np.inf, np.nan], equal_nan=True)


@pytest.mark.parametrize("threads", [128, 256])
def test_dsink(threads):
    generator = np.random.Generator(np.random.Philox(5))
    lse = generator.standard_normal((2, 700)).astype(np.float32)
    lse[0, 3] = -np.inf
    delta = generator.standard_normal((2, 700)).astype(np.float32)
    sink = F(0.75)
    sums = [F(0)] * threads
    for b in range(2):
        for row in range(700):
            gap = F(F(sink - lse[b, row]) * LOG2_E)
            p = F(1) if lse[b, row] == -np.inf else F(mufu.ex2(gap))
            sums[row % threads] = fma(-p, delta[b, row], sums[row % threads])

    def tree(values):
        while len(values) > 1:
            values = [F(a + b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    warps = [tree(sums[i : i + 32]) for i in range(0, threads, 32)]
    assert sink_gradient(lse, delta, sink, threads) == tree(warps)
    assert sink_gradient(lse, delta, sink, threads) != sink_gradient(lse, delta, sink, 384 - threads)
    exact = -np.sum(np.where(np.isneginf(lse), 1, np.exp(0.75 - lse.astype(float))) * delta)
    assert abs(sink_gradient(lse, delta, sink, threads) - exact) < 1e-4 * np.sum(np.abs(delta))
