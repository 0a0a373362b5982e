"""The backward's loop over query and KV tiles that both FA4 kernels share.

Contract, for one query tile against one KV tile, all fp32 but for the tensor core's 16-bit operands:
    P = EX2(FFMA(S, c, -L2)),  dS = FMUL(P, FADD(dP, -delta)),  S = Q.K^T,  dP = dO.V^T
    with softcap t: S becomes FMUL(t, TANH(x)), x = FMUL(S, scale) / t; dS is multiplied by FFMA(-TANH(x), TANH(x), 1)
    dV += r(P)^T.dO,  dK += r(dS)^T.Q,  dQ partial = r(dS).K       r(): to the 16-bit dtype, to nearest even
exp2 is MUFU everywhere, on Blackwell too. dS holds the unrounded P and no softmax scale. dV and dK of a KV tile are one
chain of MMA steps over the queries, ascending; each dQ partial is a chain of its own over the keys of one KV tile, and
the partials meet by fp32 additions in the order of `turns` (backward_order.py).

The query tile is the outer loop, so that the partials of one query tile are all there is to keep; KV tiles are spread
over threads. Bits do not depend on the number of threads.

Fails first in dQ's last bit where the KV tile has another width or the adds another order: tests/kernels/
test_backward.py.
Source: flash-attn-4 4.0.0b36, `flash_bwd_sm90.mma_one_m_block`, `flash_bwd_sm100.compute_loop`, `utils.
create_softcap_scoremod_bwd`; contraction to FFMA as in the final machine code.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numba.typed import List

from fa4verify.arithmetic.fma import fma
from fa4verify.arithmetic.formats import round_bf16, round_fp16
from fa4verify.arithmetic.mma import accumulate, prepare_a, prepare_b
from fa4verify.arithmetic.mufu import ex2
from fa4verify.arithmetic.mufu_tanh import tanh
from fa4verify.kernels.emulated.softmax_sm90 import MINUS_INF, ONE, ZERO


class Rules(NamedTuple):
    """What the loop needs besides tensors, scales in fp32."""

    tile_m: int
    tile_n: int
    fp16: bool
    c: np.float32  # score -> log2 units, after softcap where there is one
    softmax_scale: np.float32
    softcap: np.float32  # 0: none


@numba.njit(cache=True)
def _round(x, fp16):  # type: ignore[no-untyped-def]
    return round_fp16(x) if fp16 else round_bf16(x)


@numba.njit(cache=True)
def _p_and_ds(s, dp, low, high, lse_log2, delta, rules):  # type: ignore[no-untyped-def]
    """Turn S into P and dP into dS in place, one row, both unrounded; keys outside [low, high) are masked."""
    for j in range(s.shape[0]):
        score, slope = s[j], ONE
        if rules.softcap != ZERO:
            t = tanh((score * rules.softmax_scale) / rules.softcap)
            score, slope = rules.softcap * t, fma(-t, t, ONE)
        if j < low or j >= high:
            score = MINUS_INF
        p = ex2(fma(score, rules.c, -lse_log2))
        s[j] = p
        ds = p * (dp[j] - delta)
        dp[j] = ds * slope if rules.softcap != ZERO else ds


@numba.njit(cache=True)
def _scores(queries, douts, keys, values, low, high, lse_log2, delta, rules, step):  # type: ignore[no-untyped-def]
    """Return P and dS (tile_m, tile_n), unrounded; low and high are relative to the KV tile."""
    p = np.empty((rules.tile_m, rules.tile_n), np.float32)
    ds = np.empty((rules.tile_m, rules.tile_n), np.float32)
    accumulate(queries, keys, p, False, step)
    accumulate(douts, values, ds, False, step)
    for r in range(rules.tile_m):
        _p_and_ds(p[r], ds[r], low[r], high[r], lse_log2[r], delta[r], rules)
    return p, ds


@numba.njit(cache=True)
def _rounded_transpose(x, fp16):  # type: ignore[no-untyped-def]
    out = np.empty((x.shape[1], x.shape[0]), np.float32)
    for r in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j, r] = _round(x[r, j], fp16)
    return out


@numba.njit(cache=True)
def _left(tiles, step):  # type: ignore[no-untyped-def]
    prepared = List()
    for t in range(tiles.shape[0]):
        prepared.append(prepare_a(tiles[t], step))
    return prepared


@numba.njit(cache=True)
def _right(tiles, step):  # type: ignore[no-untyped-def]
    prepared = List()
    for t in range(tiles.shape[0]):
        prepared.append(prepare_b(tiles[t], step))
    return prepared


@numba.njit(cache=True)
def _transposed(tiles, step):  # type: ignore[no-untyped-def]
    prepared = List()
    for t in range(tiles.shape[0]):
        prepared.append(prepare_b(np.ascontiguousarray(tiles[t].T), step))
    return prepared


@numba.njit(cache=True)
def _add_in_turn(total, partial, turns):  # type: ignore[no-untyped-def]
    for n in turns:
        if n >= 0:
            for r in range(total.shape[0]):
                for d in range(total.shape[1]):
                    total[r, d] += partial[n, r, d]


@numba.njit(parallel=True, cache=True)
def gradients(  # type: ignore[no-untyped-def]
    q, k, v, dout, low, high, lse_log2, delta, met, turns, rules, step, chained, dq, dk, dv
):  # fmt: skip
    """Gradients of one head, unscaled and unrounded, in place of dq, dk, dv.

    q, dout (query tiles, tile_m, D), k, v (KV tiles, tile_n, D): float32 values of the 16-bit dtype, zeros beyond the
    ends, D a multiple of 16; low, high, lse_log2, delta (query tiles, tile_m). dq is shaped like q, dk like k, dv like
    v. Query tile m and KV tile n meet where `met`; `turns` (query tiles, KV tiles) is the order of dQ's adds, empty for
    no dQ. `chained`: dk and dv go on from what they hold, as from one query head to the next on SM100 with hd 256.
    """
    queries, douts = _left(q, step), _left(dout, step)
    queries_right, douts_right = _right(q, step), _right(dout, step)
    keys, values, keys_right = _transposed(k, step), _transposed(v, step), _right(k, step)
    begun = np.full(k.shape[0], chained)
    partial = np.empty((turns.shape[1], rules.tile_m, q.shape[2]), np.float32)
    for m in range(q.shape[0]):
        for index in numba.prange(k.shape[0]):
            n = np.int64(index)  # as it comes, it is unsigned
            if met[m, n]:
                start = n * rules.tile_n
                p, ds = _scores(
                    queries[m], douts[m], keys[n], values[n], low[m] - start, high[m] - start, lse_log2[m], delta[m],
                    rules, step,
                )  # fmt: skip
                p_transposed = _rounded_transpose(p, rules.fp16)
                accumulate(prepare_a(p_transposed, step), douts_right[m], dv[n], begun[n], step)
                ds_transposed = _rounded_transpose(ds, rules.fp16)
                accumulate(prepare_a(ds_transposed, step), queries_right[m], dk[n], begun[n], step)
                begun[n] = True
                if turns.size:
                    rounded = np.ascontiguousarray(ds_transposed.T)
                    accumulate(prepare_a(rounded, step), keys_right[n], partial[n], False, step)
        if turns.size:
            _add_in_turn(dq[m], partial, turns[m])


@numba.njit(parallel=True, cache=True)
def dq_in_one_chain(  # type: ignore[no-untyped-def]
    q, k, v, dout, low, high, lse_log2, delta, met, rules, step, dq
):  # fmt: skip
    """Scaled dQ of one head, in place: dS times the scale before its rounding, one chain over all keys, ascending."""
    queries, douts = _left(q, step), _left(dout, step)
    keys, values, keys_right = _transposed(k, step), _transposed(v, step), _right(k, step)
    for index in numba.prange(q.shape[0]):
        m = np.int64(index)
        begun = False
        for n in range(k.shape[0]):
            if met[m, n]:
                start = n * rules.tile_n
                _, ds = _scores(
                    queries[m], douts[m], keys[n], values[n], low[m] - start, high[m] - start, lse_log2[m], delta[m],
                    rules, step,
                )  # fmt: skip
                for r in range(ds.shape[0]):
                    for j in range(ds.shape[1]):
                        ds[r, j] = _round(ds[r, j] * rules.softmax_scale, rules.fp16)
                accumulate(prepare_a(ds, step), keys_right[n], dq[m], begun, step)
                begun = True
