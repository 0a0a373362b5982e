"""What FA4 computes for each query row before and after the backward's loop: delta, LSE in log2 units, dsink.

Contract: delta = rowsum(O * dO) - dLSE in FA4's order. A row belongs to a few threads; each holds vectors of 8
consecutive columns, one stride of all threads apart, and chains FFMA from 0 over the first columns of all its vectors,
then over their second columns, and so on; the threads meet by butterfly, xor 1, 2, 4, 8. O is the 16-bit tensor. LSE in
log2 units is FMUL(LSE, log2 e), 0 for -inf.
dsink = -sum over rows of EX2(FMUL(FADD(sink, -LSE), log2 e)) * delta, the probability 1 where LSE is -inf: thread t of
one CTA takes the rows t, t + threads, ... of one batch after the other, then butterflies in and over warps.

Fails first in the last bit of delta where a thread holds several vectors (head dims 96, 192, 256): one vector after
the other leaves 0.05 % of dK's elements wrong. tests/kernels/test_backward_preprocess.py.
Source: flash-attn-4 4.0.0b36, `flash_bwd_preprocess.kernel`, `flash_bwd_postprocess.dsink_row_term` and `.block_sum`.
"""

from __future__ import annotations

import numba
import numpy as np

from fa4verify.arithmetic.fma import fma
from fa4verify.arithmetic.mufu import ex2
from fa4verify.kernels.emulated.softmax_sm90 import LOG2_E, MINUS_INF, ONE, ZERO

VECTOR = 8  # columns of one 16-byte load
WARP = 32


def threads_of_row(head_dim_v: int, multiple_of: int) -> int:
    """Threads that share a row of O, whose head dim is padded to `multiple_of` (32; SM90 above head dim 128: 64)."""
    padded = -(-head_dim_v // multiple_of) * multiple_of
    width = next(width for width in (128, 64, 32) if padded % width == 0)
    return width // VECTOR


@numba.njit(cache=True)
def _butterfly(values, width):  # type: ignore[no-untyped-def]
    """Return lane 0 of a butterfly sum over the first `width` lanes, xor 1 first; `values` is spent."""
    offset = 1
    while offset < width:
        for lane in range(0, width, 2 * offset):
            values[lane] += values[lane + offset]
        offset *= 2
    return values[0]


@numba.njit(cache=True)
def row_delta(o, dout, threads):  # type: ignore[no-untyped-def]
    """Return rowsum(O * dO) of one row; o, dout float32 (head_dim_v,) holding 16-bit values."""
    parts = np.zeros(threads, np.float32)
    for offset in range(VECTOR):
        for vector in range(o.shape[0] // VECTOR):
            column = vector * VECTOR + offset
            parts[vector % threads] = fma(o[column], dout[column], parts[vector % threads])
    return _butterfly(parts, threads)


@numba.njit(cache=True)
def preprocess(o, dout, lse, dlse, threads, delta, lse_log2):  # type: ignore[no-untyped-def]
    """Fill delta and lse_log2 (rows,) from o, dout (rows, head_dim_v), lse and dlse (rows,)."""
    for row in range(o.shape[0]):
        delta[row] = row_delta(o[row], dout[row], threads) - dlse[row]
        lse_log2[row] = ZERO if lse[row] == MINUS_INF else lse[row] * LOG2_E


@numba.njit(cache=True)
def sink_gradient(lse, delta, sink, threads):  # type: ignore[no-untyped-def]
    """Return dsink of one head; lse, delta float32 (batch, rows)."""
    sums = np.zeros(threads, np.float32)
    for b in range(lse.shape[0]):
        for row in range(lse.shape[1]):
            p = ONE if lse[b, row] == MINUS_INF else ex2((sink - lse[b, row]) * LOG2_E)
            sums[row % threads] = fma(-p, delta[b, row], sums[row % threads])
    warps = np.zeros(WARP, np.float32)
    for warp in range(threads // WARP):
        warps[warp] = _butterfly(sums[warp * WARP : (warp + 1) * WARP], WARP)
    return _butterfly(warps, WARP)
