"""One row's online softmax on SM90, in the order and rounding of the final machine code.

Contract: S of one KV tile becomes P in place (fp32, before its conversion); the row's maximum and its four partial
sums (one for each thread of a quad) go forward. Always rescales. FA4's Python and PTX show a multiplication and a
subtraction where ptxas emits one FFMA; what is here is the machine code:
    P = EX2(FFMA(S, c, -FMUL(max, c))),  rescale = EX2(FMUL(FADD(old, -max), c)),
    first addend of a later tile FFMA(sum, rescale, P[0]).
`offset` (0 in FA4; FlashAttention-3 scales an 8-bit P by 2^offset) is added to the exponent of every P, so to the sum's
too, and leaves LSE; the bias is then FFMA(-max, c, offset), which for 0 is the product above.
Thread t of a quad adds columns 8i + 2t and 8i + 2t + 1, ascending; the four sums meet at the end, xor 1, then xor 2.

A NaN score is dropped from the maximum (`max.f32`), not from the sum; a row whose sum is NaN or 0 keeps O as it is
(scale 1) and reports LSE = -inf.

Fails first in the last bit of LSE and in a few O elements (49 to 223 of 1,179,648 if the sum's order is wrong).
Source: flash-attn-4 4.0.0b36, `softmax.Softmax.online_softmax` and `.finalize`; equal to H200 in every bit.
"""

from __future__ import annotations

import numba
import numpy as np

from fa4verify.arithmetic.fma import fma
from fa4verify.arithmetic.mufu import ex2, lg2, rcp

LOG2_E = np.float32(np.log2(np.e))
LN_2 = np.float32(np.log(2.0))
MINUS_INF = np.float32(-np.inf)
NAN = np.float32(np.nan)
ZERO = np.float32(0.0)
ONE = np.float32(1.0)


@numba.njit(cache=True)
def row_maximum(scores, start):  # type: ignore[no-untyped-def]
    """Largest of `start` and the scores; NaN is dropped unless nothing else is there (`max.f32`)."""
    largest = start
    for j in range(scores.shape[0]):
        if scores[j] > largest or largest != largest:
            largest = scores[j]
    return largest


@numba.njit(cache=True)
def step_sm90(s, c, old, largest, sums, first, offset):  # type: ignore[no-untyped-def]
    """Turn one row's scores into P; return the new maximum and the factor that rescales O.

    `old` is the maximum before this tile, `largest` the one including it.
    """
    reference = ZERO if largest == MINUS_INF else largest
    bias = fma(-reference, c, offset)
    for j in range(s.shape[0]):
        s[j] = ex2(fma(s[j], c, bias))
    rescale = ONE if first else ex2((old - reference) * c)
    for t in range(4):
        total = s[2 * t] if first else fma(sums[t], rescale, s[2 * t])
        total += s[2 * t + 1]
        for j in range(8 + 2 * t, s.shape[0], 8):
            total += s[j]
            total += s[j + 1]
        sums[t] = total
    return largest, rescale


@numba.njit(cache=True)
def finish_sm90(largest, sums, c, has_sink, sink, offset):  # type: ignore[no-untyped-def]
    """Return the factor that normalises O, and LSE."""
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    scaled = largest * c
    if has_sink:
        sink *= LOG2_E  # rounded once for both uses, so ptxas cannot contract it (SM100: it does)
        if largest == MINUS_INF:
            scaled = sink
        total += ex2((sink - scaled) + offset)
    if total == ZERO or total != total:
        return rcp(ONE), MINUS_INF
    log2_sum = lg2(total) - offset
    exponent = scaled + log2_sum if has_sink else fma(largest, c, log2_sum)
    return rcp(total), exponent * LN_2
