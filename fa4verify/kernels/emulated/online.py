"""The blocked attention loop that every emulated online-softmax kernel shares.

Contract: S = Q.K^T and O = P.V on the tensor-core model, one KV tile after the other; between them one step of the
architecture's softmax (softmax_sm90, softmax_sm100), chosen by the plan. O is multiplied by the rescale factor after
the previous PV and before this one; the first PV overwrites. Masked scores become -inf after softcap, in visited
tiles only; keys beyond the end are zeros.

Rows are worked in blocks of 32, one warp: on SM100 a warp multiplies O only if the factor of one of its rows is below
1, so a NaN factor alone leaves O as it is. Blocks are spread over threads; nothing is shared between them, so bits do
not depend on the number of threads.

Fails first in O's last bit where P or O is rounded elsewhere: tests/kernels/test_fa4_sm90.py.
Source: flash-attn-4 4.0.0b36, `flash_fwd_sm90.mma`, `flash_fwd_sm100.softmax_step` and `.correction_loop`.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numba.typed import List

from fa4verify.arithmetic.formats import FORMATS, round_bf16, round_e4m3, round_e5m2, round_fp16
from fa4verify.arithmetic.mma import accumulate, prepare_a, prepare_b
from fa4verify.arithmetic.mufu import ex2
from fa4verify.arithmetic.mufu_tanh import tanh
from fa4verify.kernels.emulated.softmax_sm90 import MINUS_INF, NAN, ONE, ZERO, finish_sm90, row_maximum, step_sm90
from fa4verify.kernels.emulated.softmax_sm100 import finish_sm100, step_sm100

WARP = 32  # rows in a block
BF16, FP16, E4M3, E5M2, FP32 = range(5)
FORMAT_CODES = {"bf16": BF16, "fp16": FP16, "e4m3": E4M3, "e5m2": E5M2, "fp32": FP32}
LARGEST = np.array([FORMATS[name].max_finite for name in FORMAT_CODES], np.float32)

# Columns of the counts of a row; emulated and hardware exponentials count visible keys only.
RESCALES_DONE, RESCALES_SKIPPED, TILES_VISITED, TILES_MASKED, EMULATED, HARDWARE, NOT_ONE, SATURATED = range(8)
COUNTS = 8


class Plan(NamedTuple):
    """What the loop needs besides tensors: scales in fp32, formats by code, and which softmax runs."""

    sm100: bool
    tile_n: int
    descending: bool
    c: np.float32  # score -> log2 units, after softcap where there is one
    softmax_scale: np.float32  # used with softcap only
    softcap: np.float32  # 0: none
    threshold: np.float32
    offset: np.float32
    p_format: int
    o_format: int
    has_sink: bool
    nearest: bool  # range reduction of the polynomial; False: floor, FA4's
    v_descale: np.float32  # multiplies the reciprocal of the row sum; 1: none
    blocks: bool  # scales of blocks: S and O change units from KV tile to KV tile


@numba.njit(cache=True)
def _round(x, code):  # type: ignore[no-untyped-def]
    if code == BF16:
        return round_bf16(x)
    if code == FP16:
        return round_fp16(x)
    if code == FP32:
        return x
    return round_e4m3(x, True) if code == E4M3 else round_e5m2(x, True)


@numba.njit(cache=True)
def _score(s, plan):  # type: ignore[no-untyped-def]
    """Softcap one row in place."""
    if plan.softcap != ZERO:
        for j in range(s.shape[0]):
            capped = tanh((s[j] * plan.softmax_scale) / plan.softcap)
            s[j] = plan.softcap * capped


@numba.njit(cache=True)
def _tile_of_row(s, plan, low, high, old, peak, sums, first, emulated, coefficients, count):  # type: ignore[no-untyped-def]
    """Turn one row of S into rounded P; return new maximum, rescale factor, new peak, P of the peak, largest P."""
    tile_n = s.shape[0]
    _score(s, plan)
    for j in range(min(max(low, 0), tile_n)):
        s[j] = MINUS_INF
    for j in range(max(high, 0), tile_n):
        s[j] = MINUS_INF
    largest = row_maximum(s, NAN if first else old)
    top = -1  # column of a new overall maximum
    if largest > peak:
        for j in range(tile_n):
            if s[j] == largest and largest > peak:
                peak = largest
                top = j
    if plan.sm100:
        new, rescale = step_sm100(
            s, plan.c, old, largest, sums, first, plan.threshold, plan.offset, emulated, coefficients, plan.nearest
        )
    else:
        new, rescale = step_sm90(s, plan.c, old, largest, sums, first, plan.offset)
    if largest > old and old > MINUS_INF and not first:
        count[RESCALES_DONE if new == largest else RESCALES_SKIPPED] += 1
    count[TILES_VISITED] += 1
    if min(high, tile_n) <= max(low, 0):
        count[TILES_MASKED] += 1
    for j in range(max(low, 0), min(high, tile_n)):
        count[EMULATED if emulated[j] else HARDWARE] += 1
    largest_p = ZERO
    limit = LARGEST[plan.p_format]
    for j in range(tile_n):
        p = s[j]
        s[j] = _round(p, plan.p_format)
        if p > largest_p:
            largest_p = p
        if p > limit:
            count[SATURATED] += 1
    return new, rescale, peak, s[top] if top >= 0 else NAN, largest_p


@numba.njit(cache=True)
def _row_block(  # type: ignore[no-untyped-def]
    q,
    k_tiles,
    v_tiles,
    low,
    high,
    first_tile,
    end_tile,
    sink,
    plan,
    step,
    p_step,
    emulated,
    coefficients,
    scales,
    outputs,
):
    """One block of up to 32 rows against the KV tiles [first_tile, end_tile)."""
    q_scales, k_scales, v_scales = scales
    o, lse, counts, largest_p = outputs
    rows = q.shape[0]
    a = prepare_a(q, step)
    s = np.zeros((rows, plan.tile_n), np.float32)
    acc = np.zeros((rows, o.shape[1]), np.float32)
    maximum = np.full(rows, MINUS_INF, np.float32)
    peak = np.full(rows, MINUS_INF, np.float32)
    dominant = np.full(rows, NAN, np.float32)
    rescale = np.ones(rows, np.float32)
    sums = np.zeros((rows, 4), np.float32)  # SM90: one for each thread of a quad; SM100: the first only
    for i in range(end_tile - first_tile):
        tile = end_tile - 1 - i if plan.descending else first_tile + i
        start = tile * plan.tile_n
        accumulate(a, k_tiles[tile], s, False, step)
        unit = ONE  # O is held in units of the tile's scale of V
        if plan.blocks:
            for r in range(rows):
                factor = q_scales[r] * k_scales[tile]
                for j in range(plan.tile_n):
                    s[r, j] *= factor
            if i > 0:
                unit = v_scales[tile + 1 if plan.descending else tile - 1] / v_scales[tile]
        below_one = False
        for r in range(rows):
            maximum[r], rescale[r], peak[r], p, p_max = _tile_of_row(
                s[r], plan, low[r] - start, high[r] - start, maximum[r], peak[r], sums[r], i == 0, emulated,
                coefficients, counts[r],
            )  # fmt: skip
            below_one |= rescale[r] < ONE
            largest_p[r] = max(largest_p[r], p_max)
            if p == p:
                dominant[r] = p
        if i > 0 and (below_one or not plan.sm100):
            for r in range(rows):
                factor = rescale[r] * unit
                for d in range(acc.shape[1]):
                    acc[r, d] *= factor
        accumulate(prepare_a(s, p_step), v_tiles[tile], acc, i > 0, step)
    one = ex2(plan.offset)
    descale = plan.v_descale
    if plan.blocks and end_tile > first_tile:
        descale *= v_scales[first_tile if plan.descending else end_tile - 1]
    for r in range(o.shape[0]):
        if plan.sm100:
            scale, lse[r] = finish_sm100(maximum[r], sums[r], plan.c, plan.has_sink, sink[r], plan.offset)
        else:
            scale, lse[r] = finish_sm90(maximum[r], sums[r], plan.c, plan.has_sink, sink[r], plan.offset)
        scale *= descale
        for d in range(acc.shape[1]):
            o[r, d] = _round(acc[r, d] * scale, plan.o_format)
        counts[r, NOT_ONE] = dominant[r] == dominant[r] and dominant[r] != one


@numba.njit(cache=True)
def _prepared(tiles, step):  # type: ignore[no-untyped-def]
    prepared = List()
    for t in range(tiles.shape[0]):
        prepared.append(prepare_b(tiles[t], step))
    return prepared


@numba.njit(parallel=True, cache=True)
def attend(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    low,
    high,
    first_tile,
    end_tile,
    tile_m,
    sink,
    plan,
    step,
    p_step,
    emulated,
    coefficients,
    q_scales,
    k_scales,
    v_scales,
    o,
    lse,
    counts,
    p_max,
):
    """All rows of one head (or packed group) against one KV head, in place of o, lse, counts and p_max.

    q (rows, D), k (tiles, D, tile_n), v (tiles, tile_n, Dv): float32 values of the dtype, contiguous. q may have more
    rows than o: zeros that complete the last warp; low, high, sink, counts and p_max are as long as q. q_scales
    (rows,), k_scales and v_scales (tiles,): read where the plan has blocks.
    """
    k_tiles = _prepared(k, step)
    v_tiles = _prepared(v, step)
    for block in numba.prange((q.shape[0] + WARP - 1) // WARP):
        start = block * WARP
        end = min(start + WARP, q.shape[0])
        tile = start // tile_m
        _row_block(
            q[start:end], k_tiles, v_tiles, low[start:end], high[start:end], first_tile[tile], end_tile[tile],
            sink[start:end], plan, step, p_step, emulated, coefficients, (q_scales[start:end], k_scales, v_scales),
            (o[start:end], lse[start:end], counts[start:end], p_max[start:end]),
        )  # fmt: skip
