"""Triton kernels of device64.py: attention in float64, a tile at a time, on a GPU's float64 matrix units.

Contract: `forward` solves rows without scores in memory; `softmax` turns rows of scores into weights relative to the
row's largest, in place; `weights` recomputes weights from LSE and gives dS beside them. Operands are contiguous
float64, the scale folded into q, heads of a group beside each other. Sums have one order: the same bits from run to
run. Rows that see no key get numbers without meaning from `forward` and `softmax`; device64.py sets what is declared.
Rows past the end repeat the last one and are not stored; tiles that no row of theirs sees are skipped (`weights` stores
zeros for them). Triton's interpreter runs the same kernels on the CPU, which is how they are tested.

Error, u = 2^-53, the symbols of fp64.py. `exponential` is good to 1.5 u (measured with mpmath, without FMA), where
fp64.py spends 8 u, and `capped` to 3 u |t| + 2 u |score| of its 12 u |t|: 1 - e and 1 + e are off by at most u (1 + e)
and u (1 + 3 e), their quotient hence by 3 u. `forward` keeps an online softmax whose reference rises only where a
tile's largest score exceeds it by STEP: scores span 2 A, so that there are at most 2 A / STEP + 1 rescales, however
many tiles, and a tile without one multiplies by exactly 1. A rescale costs u |old - new| + 3 u
(subtraction, exponential, product): over all of them 2 u A + 3 u (A / 8 + 1), where fp64.py spends 2 u A + 9 T u.
Weights reach e^STEP, far from overflow. Sums over keys run on in the accumulators, one rounding a key: B + T there is
Sk here, as in any product by cuBLAS. For Sk up to 512 + T the bounds of fp64.py and backward.py thus hold as they are,
beyond it with Sk (and, for dK and dV, the rows of a group) in place of their tiles'. An H200's results are within
3e-15 of those by torch's products alone, moments within 2e-14 (20,000 keys).

Speed: the keys of a product are taken even ones first, then odd ones, because that is the order in which a thread holds
its scores: without it, weights change lanes by 64 shuffles a tile. An exponential without a branch, against the
library's with one, and the largest score with its key in one reduction, bring the rest: 0.47 to 0.57 of the product's
rate at d 64.
"""

from __future__ import annotations

import triton
import triton.language as tl

STEP = tl.constexpr(16.0)  # nats


@triton.jit
def larger(a, b):
    """Return the larger one."""
    return tl.where(a > b, a, b)


@triton.jit
def loaded(X, at, x, width: tl.constexpr, whole: tl.constexpr):
    """Return X[at, x], rows of `width` numbers; unless x is known to lie inside as a whole, 0 where it does not."""
    if whole:
        return tl.load(X + at * width + x)
    return tl.load(X + at * width + x, mask=x < width, other=0.0)


@triton.jit
def product(A, of_a, B, of_b, end, x, width: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Return rows `of_a` of A times rows `of_b` of B, transposed, over their first `end` numbers."""
    s = tl.zeros([M, N], tl.float64)
    for y in range(0, end, BK):
        a = loaded(A, of_a[:, None], (y + x)[None, :], width, width % BK == 0)
        b = loaded(B, of_b[None, :], (y + x)[:, None], width, width % BK == 0)
        s = tl.dot(a, b, s, out_dtype=tl.float64)
    return s


@triton.jit
def exponential(x):
    """Return e^x for x < 700, 0 below -708: 2^k times a polynomial of degree 11 in x - k log 2.

    The coefficients interpolate e^r at Chebyshev nodes of |r| <= 0.34658 (2e-17 of e^r).
    """
    t = x * 1.4426950408889634 + 6755399441055744.0
    k = t - 6755399441055744.0
    r = x - k * 0.6931471803691238
    r = r - k * 1.9082149292705877e-10
    y = r * 2.5110039751031143e-08 + 2.763264242854867e-07
    y = y * r + 2.755724091278181e-06
    y = y * r + 2.480148547478971e-05
    y = y * r + 0.0001984126989005253
    y = y * r + 0.0013888888952321818
    y = y * r + 0.0083333333333196
    y = y * r + 0.04166666666648807
    y = y * r + 0.1666666666666668
    y = y * r + 0.5000000000000019
    y = y * r + 1.0
    y = y * r + 1.0
    bits = y.to(tl.int64, bitcast=True) + (t.to(tl.int64, bitcast=True) << 52)
    return tl.where(x < -708.0, 0.0, bits.to(tl.float64, bitcast=True))


@triton.jit
def capped(s, Cap):
    """Return softcap * tanh(s / softcap)."""
    cap = tl.load(Cap)
    x = s / cap
    e = exponential(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return cap * tl.where(x < 0.0, -t, t)


@triton.jit
def forward(
    Q, K, V, First, Last, Cap, Out, LSE, TopKey, TopWeight,
    group, seqlen_q, seqlen_k,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, CAPPED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Store O, LSE, the first key with the largest score and its weight, for M rows of a head."""
    h = tl.program_id(0).to(tl.int64)
    b = tl.num_programs(1) - 1 - tl.program_id(1)
    rows = b * M + tl.arange(0, M)
    r = tl.minimum(rows, seqlen_q - 1)
    d, dv, c = tl.arange(0, BD), tl.arange(0, BDV), tl.arange(0, N)
    Q += h * seqlen_q * D
    K += h // group * seqlen_k * D
    V += h // group * seqlen_k * DV
    q = loaded(Q, r[:, None], d[None, :], D, BD == D)
    low, high = 0, seqlen_k
    if MASKED:
        first, last = tl.load(First + r), tl.load(Last + r)
        end = tl.minimum(b * M + M, seqlen_q) - 1
        low, all_from = tl.load(First + b * M), tl.load(First + end)
        all_to, high = tl.load(Last + b * M), tl.load(Last + end)
    m = tl.full([M], float("-inf"), tl.float64)
    top = m
    total = tl.zeros([M], tl.float64)
    t = tl.full([M], -1, tl.int32)
    acc = tl.zeros([M, BDV], tl.float64)
    even = tl.arange(0, N // 2) * 2
    for j in range(low, high, N):
        at = j + c
        if MASKED:
            at = tl.minimum(at, seqlen_k - 1)
        s = tl.dot(q, loaded(K, at[None, :], d[:, None], D, BD == D))
        if CAPPED:
            s = capped(s, Cap)
        if MASKED:  # noqa: SIM102 - the first is known when compiled
            if (j < all_from) | (j + N > all_to):
                seen = (c[None, :] >= (first - j)[:, None]) & (c[None, :] < (last - j)[:, None])
                s = tl.where(seen, s, float("-inf"))
        mm, i = tl.max(s, 1, return_indices=True)
        t = tl.where(mm > top, i + j, t)
        top = tl.maximum(top, mm)
        new = tl.where(mm > m + STEP, mm, m)
        if MASKED:
            ref = tl.where(new > float("-inf"), new, 0.0)
            al = exponential(m - ref)
            p = exponential(s - ref[:, None])
        else:
            al = exponential(m - new)
            p = exponential(s - new[:, None])
        m = new
        total = total * al + tl.sum(p, 1)
        acc = acc * al[:, None]
        p0, p1 = tl.split(tl.reshape(p, [M, N // 2, 2]))
        a0, a1 = j + even, j + even + 1
        if MASKED:
            a0, a1 = tl.minimum(a0, seqlen_k - 1), tl.minimum(a1, seqlen_k - 1)
        v0 = loaded(V, a0[:, None], dv[None, :], DV, BDV == DV)
        v1 = loaded(V, a1[:, None], dv[None, :], DV, BDV == DV)
        acc = tl.dot(p0, v0, acc, out_dtype=tl.float64)
        acc = tl.dot(p1, v1, acc, out_dtype=tl.float64)
    ok = rows < seqlen_q
    one = 1.0 / total
    inside = ok[:, None] & (dv < DV)[None, :]
    tl.store(Out + (h * seqlen_q + r)[:, None] * DV + dv[None, :], acc * one[:, None], mask=inside)
    tl.store(LSE + h * seqlen_q + r, m + tl.log(total), mask=ok)
    tl.store(TopKey + h * seqlen_q + r, t.to(tl.float64), mask=ok)
    tl.store(TopWeight + h * seqlen_q + r, exponential(top - m) * one, mask=ok)


@triton.jit
def weights(
    Q, K, DO, V, First, Last, LSE, Below, Cap, P, DS, G, FromP, Largest,
    start_row, start_key, rows, keys, group, seqlen_q, seqlen_k,
    D: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAPPED: tl.constexpr, MASKED: tl.constexpr, MOMENTS: tl.constexpr,
):  # fmt: skip
    """Store P and dS of M rows by N keys.

    With moments P g as well and, a number for each row, the sum of (P dP)^2 and the largest |dS|.
    """
    h = tl.program_id(2).to(tl.int64)
    i, j = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    r, c = start_row + tl.minimum(i, rows - 1), start_key + tl.minimum(j, keys - 1)
    of_rows, of_keys = h * seqlen_q + r, h // group * seqlen_k + c
    x = tl.arange(0, BK)
    width, width_v = D, DV
    if MASKED:
        first, last = tl.load(First + r), tl.load(Last + r)
        seen = (c[None, :] >= first[:, None]) & (c[None, :] < last[:, None])
        some = tl.max(tl.max(seen.to(tl.int32), 1), 0)
        width, width_v = width * some, width_v * some
    s = product(Q, of_rows, K, of_keys, width, x, D, BK, M, N)
    dp = product(DO, of_rows, V, of_keys, width_v, x, DV, BK, M, N)
    at = (h * rows + i)[:, None] * keys + j[None, :]
    inside = (i < rows)[:, None] & (j < keys)[None, :]
    if CAPPED:
        cap = tl.load(Cap)
        e = exponential(-2.0 * tl.abs(s / cap))
        slope = 4.0 * e / ((e + 1.0) * (e + 1.0))
        s = capped(s, Cap)
    p = exponential(s - tl.load(LSE + of_rows)[:, None])
    if MASKED:
        p = tl.where(seen, p, 0.0)
    ds = p * (dp - tl.load(Below + of_rows)[:, None])
    tl.store(P + at, p, mask=inside)
    if CAPPED:
        ds *= slope
        if MOMENTS:
            tl.store(G + at, p * slope, mask=inside)
    tl.store(DS + at, ds, mask=inside)
    if MOMENTS:
        pdp = tl.where(inside, p * dp, 0.0)
        to = (h * rows + i) * tl.num_programs(0) + tl.program_id(0)
        tl.store(FromP + to, tl.sum(pdp * pdp, 1), mask=i < rows)
        tl.store(Largest + to, tl.reduce(tl.abs(ds), 1, larger), mask=i < rows)


@triton.jit
def softmax(
    S, P2, First, Last, Cap, LSE, TopKey, TopWeight, Top,
    start_row, start_key, rows, keys, seqlen_q,
    M: tl.constexpr, N: tl.constexpr, CAPPED: tl.constexpr, SQUARES: tl.constexpr,
):  # fmt: skip
    """Store e^(score - largest) over M rows of scores, its square beside it, and what `forward` gives beside O."""
    i, h = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1).to(tl.int64)
    ok = i < rows
    r = start_row + tl.minimum(i, rows - 1)
    first, last = tl.load(First + r)[:, None] - start_key, tl.load(Last + r)[:, None] - start_key
    low, high = tl.min(tl.min(first, 1), 0), tl.max(tl.max(last, 1), 0)
    c = tl.arange(0, N)[None, :]
    row = ((h * rows + i) * keys)[:, None]
    best = tl.full([M, N], float("-inf"), tl.float64)
    where = tl.zeros([M, N], tl.int32)
    for j in range(tl.maximum(low, 0) // N * N, high, N):
        seen = ok[:, None] & (j + c >= first) & (j + c < last)
        s = tl.load(S + row + j + c, mask=seen, other=float("-inf"))
        where = tl.where(s > best, j + c, where)
        best = larger(best, s)
    top = tl.reduce(best, 1, larger)
    key = tl.min(tl.where(best == top[:, None], where, 2147483647), 1)
    if CAPPED:
        top = capped(top, Cap)
    total = tl.zeros([M, N], tl.float64)
    for j in range(0, keys, N):
        inside = ok[:, None] & (j + c < keys)
        seen = ok[:, None] & (j + c >= first) & (j + c < last)
        s = tl.load(S + row + j + c, mask=seen, other=float("-inf"))
        if CAPPED:
            s = capped(s, Cap)
        p = tl.where(seen, exponential(s - top[:, None]), 0.0)
        total += p
        tl.store(S + row + j + c, p, mask=inside)
        if SQUARES:
            tl.store(P2 + row + j + c, p * p, mask=inside)
    one = tl.sum(total, 1)
    to = h * seqlen_q + r
    tl.store(TopKey + to, (start_key + key).to(tl.float64), mask=ok)
    tl.store(Top + to, top, mask=ok)
    tl.store(TopWeight + to, 1.0 / one, mask=ok)
    tl.store(LSE + to, top + tl.log(one), mask=ok)
