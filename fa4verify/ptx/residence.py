"""Which CTAs are there: a cluster's start and end.

Contract: `start` gives the next cluster of the grid, in the order of `order`, a free group of resident places, with
registers from the image, predicates false, everything else poison; `release` frees them. A worker's places are taken in
groups of a cluster's size.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import njit

from fa4verify.ptx.atomics import add64
from fa4verify.ptx.knobs import COMMON, COUNT, KNOB
from fa4verify.ptx.lane_ir import LANES, SLOT_BYTES
from fa4verify.ptx.operations import RANK_SHIFT
from fa4verify.ptx.raw import address_of, copy_bytes
from fa4verify.ptx.state import POISON_BYTE, Cta, Warp


class Special(IntEnum):
    """Special registers that differ between CTAs or warps; the others are constants of a launch."""

    TID_X = 0
    TID_Y = 1
    TID_Z = 2
    WARPID = 3
    CTAID_X = 4
    CTAID_Y = 5
    CTAID_Z = 6
    CTARANK = 7
    CLUSTERID_X = 8
    CLUSTERID_Y = 9
    CLUSTERID_Z = 10
    SHARED_BASE = 11
    SMID = 12


SPECIALS = {
    "%tid.x": Special.TID_X,
    "%tid.y": Special.TID_Y,
    "%tid.z": Special.TID_Z,
    "%warpid": Special.WARPID,
    "%ctaid.x": Special.CTAID_X,
    "%ctaid.y": Special.CTAID_Y,
    "%ctaid.z": Special.CTAID_Z,
    "%cluster_ctarank": Special.CTARANK,
    "%cluster_ctaid.x": Special.CTARANK,
    "%clusterid.x": Special.CLUSTERID_X,
    "%clusterid.y": Special.CLUSTERID_Y,
    "%clusterid.z": Special.CLUSTERID_Z,
    "%shared_base": Special.SHARED_BASE,
    "%smid": Special.SMID,
}

_TID_X, _TID_Y, _TID_Z = int(Special.TID_X), int(Special.TID_Y), int(Special.TID_Z)
_WARPID, _RANK, _BASE, _SMID = int(Special.WARPID), int(Special.CTARANK), int(Special.SHARED_BASE), int(Special.SMID)
_CTAID_X, _CTAID_Y = int(Special.CTAID_X), int(Special.CTAID_Y)
_CLUSTERID_X, _CLUSTERID_Y = int(Special.CLUSTERID_X), int(Special.CLUSTERID_Y)
_LIVE, _FIRST, _SIZE, _X, _Y, _Z, _LINEAR, _WARPS = (
    int(Cta[name]) for name in ("LIVE", "FIRST", "SIZE", "X", "Y", "Z", "LINEAR", "WARPS")
)
_W_LIVE, _THREADS = int(Warp.LIVE), int(Warp.THREADS)
_CLUSTER_X, _GRID_X, _GRID_Y = int(KNOB.CLUSTER_X), int(KNOB.GRID_X), int(KNOB.GRID_Y)
_BLOCK_X, _BLOCK_Y, _BLOCK_Z = int(KNOB.BLOCK_X), int(KNOB.BLOCK_Y), int(KNOB.BLOCK_Z)
_PROCESSORS = int(KNOB.PROCESSORS)
_NEXT, _CTAS = 8 * int(COMMON.NEXT), int(COUNT.CTAS)


@njit(cache=True)
def _special(state, r, w, lane, which):  # type: ignore[no-untyped-def]
    """Value of a special register."""
    knobs, cta = state.knobs, state.ctas[r]
    thread = LANES * w + lane
    if which == _TID_X:
        return thread % knobs[_BLOCK_X]
    if which == _TID_Y:
        return thread // knobs[_BLOCK_X] % knobs[_BLOCK_Y]
    if which == _TID_Z:
        return thread // (knobs[_BLOCK_X] * knobs[_BLOCK_Y])
    if which == _WARPID:
        return np.int64(w)
    rank = np.int64(r) - cta[_FIRST]
    if which == _RANK:
        return rank
    if which == _BASE:
        return rank << RANK_SHIFT
    if which == _SMID:
        return cta[_LINEAR] % knobs[_PROCESSORS]
    if which == _CLUSTERID_X:
        return cta[_X] // knobs[_CLUSTER_X]
    if which in (_CTAID_Y, _CLUSTERID_Y):
        return cta[_Y]
    return cta[_X] if which == _CTAID_X else cta[_Z]


@njit(cache=True)
def _start_cta(state, image, specials, r, first, cluster):  # type: ignore[no-untyped-def]
    """Fill one place."""
    knobs, cta = state.knobs, state.ctas[r]
    size = knobs[_CLUSTER_X]
    clusters = knobs[_GRID_X] // size
    cta[:] = 0
    cta[_LIVE], cta[_FIRST], cta[_SIZE] = 1, first, size
    cta[_X] = cluster % clusters * size + (r - first)
    cta[_Y] = cluster // clusters % knobs[_GRID_Y]
    cta[_Z] = cluster // (clusters * knobs[_GRID_Y])
    cta[_LINEAR] = (cta[_Z] * knobs[_GRID_Y] + cta[_Y]) * knobs[_GRID_X] + cta[_X]
    warps = state.warps.shape[1]
    cta[_WARPS] = warps
    threads = knobs[_BLOCK_X] * knobs[_BLOCK_Y] * knobs[_BLOCK_Z]
    state.predicates[r] = 0
    state.rows[r] = 0
    state.warps[r] = 0
    state.barriers[r] = 0
    state.groups[r] = 0
    state.shared[r] = POISON_BYTE
    state.local[r] = POISON_BYTE
    if r < state.tensor.shape[0]:
        state.tensor[r] = np.uint32(0xFFFFFFFF)
    for w in range(warps):
        lanes = min(threads - LANES * w, LANES)
        state.warps[r, w, _W_LIVE] = state.warps[r, w, _THREADS] = (np.int64(1) << lanes) - 1
        registers = state.registers[r, w]
        copy_bytes(address_of(registers), address_of(image), SLOT_BYTES * registers.shape[0])
        for i in range(specials.shape[0]):
            for lane in range(LANES):
                registers[specials[i, 0], lane] = np.uint32(_special(state, r, w, lane, specials[i, 1]))


@njit(cache=True)
def start(state, image, specials, order, common):  # type: ignore[no-untyped-def]
    """Start the next cluster; whether there was one, and room for it."""
    size = state.knobs[_CLUSTER_X]
    first = np.int64(-1)
    for place in range(0, state.ctas.shape[0] - size + 1, size):
        if state.ctas[place, _LIVE] == 0:
            first = np.int64(place)
            break
    if first < 0:
        return False
    index = add64(address_of(common) + _NEXT, 1)
    if index >= order.size:
        return False
    for r in range(first, first + size):
        _start_cta(state, image, specials, r, first, order[index])
    return True


@njit(cache=True)
def release(state, first):  # type: ignore[no-untyped-def]
    """Free the places of a cluster that has ended."""
    size = state.ctas[first, _SIZE]
    for r in range(first, first + size):
        state.ctas[r, _LIVE] = 0
    state.counts[_CTAS] += size
