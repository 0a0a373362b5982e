"""cp.async.bulk.tensor and cp.reduce.async.bulk.tensor: boxes of a tensor, by its map.

Contract: `issue_*` reads the registers of one lane and fills X0 ... of an entry; `perform_*` has the effect, later.
Both return 0 or a fault. The queue fills the other fields of the entry. X0 ... hold:

    TENSOR_LOAD    X0 shared address, X1 address of the map, X2 mbarrier, X3 ... X7 coordinates, X8 multicast mask or -1
    TENSOR_STORE   X0 shared address, X1 address of the map, X3 ... X7 coordinates
    TENSOR_REDUCE  as TENSOR_STORE

The map is read when the copy is performed. A mask's CTAs all receive the whole box (hardware's multicast).
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.bounds import global_at, parameter_at
from fa4verify.ptx.boxes import ADD, LOAD, OK, OUTSIDE_GLOBAL, OUTSIDE_SHARED, STORE
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.mbarrier import complete_tx
from fa4verify.ptx.operations import RANK_SHIFT, Atomic, Column, Pending
from fa4verify.ptx.raw import address_of, load_i64
from fa4verify.ptx.registers import signed32, value32, value64
from fa4verify.ptx.stage import REPORT
from fa4verify.ptx.state import Cta, Fault
from fa4verify.ptx.tensor_map import MAP_BYTES
from fa4verify.ptx.units import copy_box

_OFFSET = (1 << RANK_SHIFT) - 1


@inner
def _issue(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value64(state, r, w, code[Column.A], lane)
    for i in range(code[Column.F]):
        entry[Pending.X3 + i] = signed32(state, r, w, state.pool[code[Column.E] + i], lane)
    for i in range(code[Column.F], 5):
        entry[Pending.X3 + i] = 0


@inner
def issue_tensor_load(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read addresses, coordinates and the multicast mask."""
    _issue(state, r, w, row, lane, entry)
    code = state.code[row]
    entry[Pending.X2] = value32(state, r, w, code[Column.C], lane) + code[Column.G]
    entry[Pending.X8] = -1
    if code[Column.B] >= 0:
        entry[Pending.X8] = value32(state, r, w, code[Column.B], lane) & 0xFFFF
    return 0


@inner
def issue_tensor_store(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read addresses and coordinates; also of TENSOR_REDUCE."""
    _issue(state, r, w, row, lane, entry)
    return 0


@inner
def _box(state, r, entry, target, direction):  # type: ignore[no-untyped-def]
    """Copy one box to or from the shared memory of resident CTA `target`; its bytes at REPORT of the stage."""
    w, row = entry[Pending.WARP], entry[Pending.ROW]
    place = parameter_at(state, entry[Pending.X1], MAP_BYTES)
    if place == 0:
        place = global_at(state, entry[Pending.X1], MAP_BYTES)
    if place == 0 or entry[Pending.X1] & 63:
        return raise_(state, Fault.TENSOR_MAP, r, w, row, entry[Pending.LANE], entry[Pending.X1], MAP_BYTES, 0, 0)
    offset = entry[Pending.X0] & _OFFSET
    if offset & 127:
        return raise_(state, Fault.MISALIGNED, r, w, row, entry[Pending.LANE], entry[Pending.X0], 128, 0, 0)
    report = address_of(state.stage) + REPORT
    answer = copy_box(
        state.units, place, state.code[row, Column.F], address_of(entry) + 8 * Pending.X3,
        address_of(state.shared[target]), state.shared.shape[1], offset, address_of(state.memory),
        state.memory.shape[0], direction, report,
    )  # fmt: skip
    if answer == OK:
        return 0
    kind = np.int64(Fault.TENSOR_MAP)
    if answer == OUTSIDE_SHARED:
        kind = np.int64(Fault.SHARED_BOUNDS)
    elif answer == OUTSIDE_GLOBAL:
        kind = np.int64(Fault.GLOBAL_BOUNDS)
    return raise_(state, kind, r, w, row, entry[Pending.LANE], load_i64(report), load_i64(report + 8), 0, 0)


@inner
def perform_tensor_load(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy a box to shared memory (of every CTA of the mask), zeros outside the tensor; complete_tx the box's bytes.

    With a mask, box and mbarrier have in each CTA the addresses that they have in one.
    """
    mask = entry[Pending.X8]
    first, size = state.ctas[r, Cta.FIRST], state.ctas[r, Cta.SIZE]
    if mask < 0:
        rank = entry[Pending.X0] >> RANK_SHIFT
        if rank >= size:
            return raise_(
                state, Fault.SHARED_BOUNDS, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE],
                entry[Pending.X0], 0, 0, 0,
            )  # fmt: skip
        fault = _box(state, r, entry, first + rank, LOAD)
        if fault != 0:
            return fault
        return complete_tx(state, r, entry[Pending.X2], load_i64(address_of(state.stage) + REPORT))
    if mask >> size:
        return raise_(
            state, Fault.SHARED_BOUNDS, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE], mask, size,
            0, 0,
        )  # fmt: skip
    for rank in range(size):
        if (mask >> rank) & 1:
            fault = _box(state, r, entry, first + rank, LOAD)
            if fault == 0:
                barrier = (entry[Pending.X2] & _OFFSET) | (rank << RANK_SHIFT)
                fault = complete_tx(state, r, barrier, load_i64(address_of(state.stage) + REPORT))
            if fault != 0:
                return fault
    return 0


@inner
def _from_shared(state, r, entry, direction):  # type: ignore[no-untyped-def]
    """Copy or add a box of this CTA's shared memory."""
    if state.ctas[r, Cta.FIRST] + (entry[Pending.X0] >> RANK_SHIFT) != r:
        return raise_(
            state, Fault.SHARED_BOUNDS, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE],
            entry[Pending.X0], 0, 0, 0,
        )  # fmt: skip
    return _box(state, r, entry, r, direction)


@inner
def perform_tensor_store(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy a box from shared memory; what lies outside the tensor is dropped."""
    return _from_shared(state, r, entry, STORE)


@inner
def perform_tensor_reduce(state, r, entry):  # type: ignore[no-untyped-def]
    """Combine a box in shared memory with the tensor, element by element; fp32 sums only."""
    if state.code[entry[Pending.ROW], Column.G] != Atomic.ADD_F32:
        return raise_(
            state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE],
            state.code[entry[Pending.ROW], Column.G], 0, 0, 0,
        )  # fmt: skip
    return _from_shared(state, r, entry, ADD)
