"""One row's online softmax on SM100: polynomial lanes, conditional rescale, eight partial sums.

Contract: S of one KV tile becomes P in place (fp32, before its conversion); the row's reference maximum and its sum
go forward. One thread owns the row.
    a = FMUL(old - new, c);  a >= -threshold keeps the old maximum and the factor 1 (inclusive; 0 disables it),
    x = FFMA(S, c, FFMA(-max, c, max_offset)),  P = poly(x) on emulated columns, EX2(x) on the others,
    element i is added to partial i mod 8; FMUL(sum, factor) comes first, into partial 0.
FA4's Python subtracts the rounded product from max_offset; ptxas makes one FFMA of it. With the offset 0 of 16-bit
inputs both are the same number.

A NaN score becomes P = 0 on an emulated column (the polynomial clamps at -127 with a max that drops NaN) and NaN on
the others. With a negative scale the threshold test never fails, and masked keys no longer vanish: as in FA4.

Fails first where a row's maximum rises by exactly the threshold, and at columns whose lane is mistaken.
Source: flash-attn-4 4.0.0b36, `softmax.SoftmaxSm100`, `softmax.apply_learnable_sink`, `utils.fadd_reduce`,
`flash_fwd_sm100.correction_loop`. Not compared with a Blackwell device.
"""

from __future__ import annotations

import numba

from fa4verify.arithmetic.exp2 import ex2_emulation, ex2_emulation_nearest
from fa4verify.arithmetic.fma import fma
from fa4verify.arithmetic.mufu import ex2, lg2, rcp
from fa4verify.kernels.emulated.softmax_sm90 import LN_2, LOG2_E, MINUS_INF, ONE, ZERO


@numba.njit(cache=True)
def step_sm100(  # type: ignore[no-untyped-def]
    s, c, old, largest, sums, first, threshold, offset, emulated, coefficients, nearest
):
    """Turn one row's scores into P; return the new reference maximum and the factor that rescales O.

    `emulated[j]` says that column j takes the polynomial, whose range reduction rounds to `nearest` or, as FA4's, down.
    `sums[0]` holds the row's sum.
    """
    reference = ZERO if largest == MINUS_INF else largest
    rescale = ZERO
    if not first:
        rise = (old - reference) * c
        rescale = ex2(rise)
        if threshold > ZERO and rise >= -threshold:
            largest = old
            reference = old
            rescale = ONE
    bias = fma(-reference, c, offset)
    for j in range(s.shape[0]):
        x = fma(s[j], c, bias)
        if not emulated[j]:
            s[j] = ex2(x)
        elif nearest:
            s[j] = ex2_emulation_nearest(x, coefficients)
        else:
            s[j] = ex2_emulation(x, coefficients)
    p0, p1, p2, p3, p4, p5, p6, p7 = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
    if not first:
        p0 = sums[0] * rescale + s[0]
        p1 = ZERO + s[1]
    for j in range(8, s.shape[0], 8):
        p0 += s[j]
        p1 += s[j + 1]
        p2 += s[j + 2]
        p3 += s[j + 3]
        p4 += s[j + 4]
        p5 += s[j + 5]
        p6 += s[j + 6]
        p7 += s[j + 7]
    sums[0] = ((p0 + p2) + (p4 + p6)) + ((p1 + p3) + (p5 + p7))
    return largest, rescale


@numba.njit(cache=True)
def finish_sm100(largest, sums, c, has_sink, sink, offset):  # type: ignore[no-untyped-def]
    """Return the factor that normalises O, and LSE."""
    total = sums[0]
    if has_sink:
        if largest == MINUS_INF:
            largest = sink * (LOG2_E / c)
            total = ex2(offset)
        else:
            total += ex2(fma(sink, LOG2_E, -(largest * c)) + offset)
    if total == ZERO or total != total:
        return rcp(ONE), MINUS_INF
    return rcp(total), fma(largest, c, lg2(total) - offset) * LN_2
