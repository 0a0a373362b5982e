"""One warp for a while: 32 lanes an instruction, the lanes that lag behind first.

Contract: `run` runs rows of a warp until it blocks, ends, meets a fault or has used up its budget,
and returns 0 or a fault; `State.warps` says why it stopped. Of lanes at different rows those at the lowest run first
and stop where the others wait: forward branches reconverge at the earliest row. An instruction that needs lanes which
are not there yet parks those that are, until the others arrive; where they cannot arrive that is the fault DIVERGENT.
A load from global memory that sees the same value at the same address again, with nothing done in between, is taken for
a spin: the warp yields.
Speed: `straight` runs lane operations and uniform branches without leaving compiled code's registers, 8 to 17 ns a
row; everything else is a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from fa4verify.ptx import barriers, exchange, queue
from fa4verify.ptx.calls import by_address, call_at
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.handle import machine_at, table_of
from fa4verify.ptx.inner import inner
from fa4verify.ptx.knobs import CALL, COUNT
from fa4verify.ptx.lane_functions import LAST_FAMILY, SECOND_FAMILY, THIRD_FAMILY
from fa4verify.ptx.lane_ir import LANES, SLOT_BYTES
from fa4verify.ptx.lanes import FIRST_FUNCTION, run_lane
from fa4verify.ptx.matrix import ldmatrix, stmatrix
from fa4verify.ptx.mma_sync import mma_sync
from fa4verify.ptx.operations import COLUMNS, FIRST_UNIT, Column, Op
from fa4verify.ptx.raw import address_of, load_i64, load_u32, scratch, store_i64, store_u32, store_u64
from fa4verify.ptx.state import Cta, Fault, Waiting, Warp
from fa4verify.ptx.tcgen05 import tc_alloc, tc_dealloc

NEVER = 1 << 40  # a row that no program reaches
_ROW_BYTES = 8 * COLUMNS
_GUARD, _IMM = 8 * int(Column.GUARD), 8 * int(Column.IMM)
_D, _A, _F = int(Column.D), int(Column.A), int(Column.F)
_IMMEDIATE = int(Column.IMM)
_ALL = 0xFFFFFFFF

_NOP, _BRANCH, _EXIT, _TRAP = int(Op.NOP), int(Op.BRANCH), int(Op.EXIT), int(Op.TRAP)
_FIRST_MEMORY, _LAST_MEMORY = int(Op.LOAD_PARAMETER), int(Op.ATOMIC_SHARED)
_LOAD_GLOBAL = int(Op.LOAD_GLOBAL)
_STORES = tuple(int(Op[x]) for x in ("STORE_GLOBAL", "STORE_SHARED", "ATOMIC_GLOBAL", "ATOMIC_SHARED"))
_FIRST_EXCHANGE, _LAST_EXCHANGE, _SHUFFLE = int(Op.SHUFFLE), int(Op.ACTIVEMASK), int(Op.SHUFFLE)
_FIRST_BARRIER, _LAST_BARRIER = int(Op.BAR_SYNC), int(Op.CLUSTER_WAIT)
_TRY_WAIT, _ARRIVE_ASYNC, _BAR_WARP = int(Op.MBARRIER_TRY_WAIT), int(Op.MBARRIER_ARRIVE_ASYNC), int(Op.BAR_WARP)
_MMA_SYNC, _LDMATRIX, _STMATRIX = int(Op.MMA_SYNC), int(Op.LDMATRIX), int(Op.STMATRIX)
_TC_ALLOC, _TC_DEALLOC, _TC_RELINQUISH = int(Op.TC_ALLOC), int(Op.TC_DEALLOC), int(Op.TC_RELINQUISH)
_ATOMICS = (int(Op.ATOMIC_GLOBAL), int(Op.ATOMIC_SHARED))
_COLLECTIONS = (int(Op.VOTE), int(Op.MATCH), int(Op.REDUX))
_CLOCK = int(Op.CLOCK)
_STRAIGHT, _FAMILIES, _MEMORY, _ATOMIC, _EXCHANGE, _COLLECT, _BARRIER, _MULTIPLY, _MATRIX, _TENSOR_MEMORY, _ISSUE = (
    int(CALL[name])
    for name in (
        "STRAIGHT", "APPROXIMATIONS", "MEMORY", "ATOMIC", "EXCHANGE", "COLLECT", "BARRIER", "MMA_SYNC", "MATRIX",
        "TENSOR_MEMORY", "ISSUE",
    )
)  # fmt: skip
_WHOLE = tuple(
    int(Op[x])
    for x in (
        "BAR_SYNC", "BAR_ARRIVE", "CLUSTER_ARRIVE", "CLUSTER_WAIT", "WGMMA", "WGMMA_COMMIT", "WGMMA_WAIT", "MMA_SYNC",
        "LDMATRIX", "STMATRIX", "TC_ALLOC", "TC_DEALLOC", "TC_RELINQUISH", "TC_LD", "TC_ST", "TC_WAIT_LD", "TC_WAIT_ST",
        "VOTE", "ELECT", "MATCH", "REDUX",
    )
)  # fmt: skip

_STATE, _LIVE, _ROW, _STEPS = int(Warp.STATE), int(Warp.LIVE), int(Warp.ROW), int(Warp.STEPS)
_PARKED, _EFFECTS = int(Warp.PARKED), int(Warp.EFFECTS)
_SPIN_ROW, _SPIN_EFFECTS, _SPIN_ADDRESS = int(Warp.SPIN_ROW), int(Warp.SPIN_EFFECTS), int(Warp.SPIN_ADDRESS)
_NOTHING, _DONE, _GLOBAL = int(Waiting.NOTHING), int(Waiting.DONE), int(Waiting.GLOBAL_MEMORY)
_WARPS, _PROGRESS = int(Cta.WARPS), int(Cta.PROGRESS)
_DIVERGENT, _TRAPPED = int(Fault.DIVERGENT), int(Fault.TRAP)
_C_STEPS, _C_LANES, _C_FLOPS = int(COUNT.STEPS), int(COUNT.LANES), int(COUNT.MMA_FLOPS)
_C_SPINS, _C_DIVERGENT = int(COUNT.SPINS), int(COUNT.DIVERGENT)


def _population(_typing_context, _x):  # type: ignore[no-untyped-def]
    """Count the set bits of an int64."""

    def codegen(_context, builder, _signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), codegen


population: Any = intrinsic(_population)


@inner
def _guarded(at, predicates, mask):  # type: ignore[no-untyped-def]
    """Lanes of a mask whose guard at a row of code is true."""
    guard = load_i64(at + _GUARD)
    if guard < 0:
        return mask
    word = np.int64(load_u32(predicates + 4 * (guard >> 1)))
    return mask & (~word if guard & 1 else word)


@inner
def _lane_family(index):  # type: ignore[no-untyped-def]
    """Which family of lane functions has an entry."""
    if index < SECOND_FAMILY:
        return 0
    return 1 if index < THIRD_FAMILY else 2 if index < LAST_FAMILY else 3


@by_address
def straight(code, registers, predicates, mask, stop, limit, careful, functions, place):  # type: ignore[no-untyped-def]
    """Run lane operations and uniform branches.

    Stops before row `stop`, after `limit` rows, before any other instruction that some lane runs, before a branch that
    splits the lanes or passes `stop`; `careful`: before any branch that is taken.

    Parameters
    ----------
    code, registers, predicates
        Addresses.
    functions
        Address of the addresses of the families of lane functions.
    place
        Address of three int64: the row, where it starts and where it stopped; what it adds to are rows run, and lanes
        that took part in them.
    """
    row = load_i64(place)
    steps = np.int64(0)
    lanes = np.int64(0)
    while row != stop and steps < limit:
        at = code + _ROW_BYTES * row
        operation = load_i64(at)
        active = _guarded(at, predicates, mask)
        if operation < FIRST_UNIT:
            if active:
                if operation < FIRST_FUNCTION:
                    run_lane(operation, at, registers, predicates, active)
                else:
                    index = operation - FIRST_FUNCTION
                    family = functions + 8 * _lane_family(index)
                    call_at(load_i64(family), (index, at, registers, active))
            row += 1
        elif operation == _NOP or active == 0:
            row += 1
        elif operation == _BRANCH and active == mask and not careful and load_i64(at + _IMM) <= stop:
            row = load_i64(at + _IMM)
        else:
            break
        steps += 1
        lanes += population(active)
    store_i64(place, row)
    store_i64(place + 8, load_i64(place + 8) + steps)
    store_i64(place + 16, load_i64(place + 16) + lanes)
    return steps


@inner
def _choose(state, r, w):  # type: ignore[no-untyped-def]
    """Return the row to run, the lanes at it, and the next row at which others wait; row -1 where nobody can go on."""
    warp, rows = state.warps[r, w], state.rows[r, w]
    live = warp[_LIVE]
    free = live & ~warp[_PARKED]
    if free == 0:
        free = live
    row = np.int64(NEVER)
    for lane in range(LANES):
        if (free >> lane) & 1 and rows[lane] < row:
            row = rows[lane]
    mask, stop = np.int64(0), np.int64(NEVER)
    for lane in range(LANES):
        if (live >> lane) & 1:
            if rows[lane] == row:
                mask |= np.int64(1) << lane
            elif row < rows[lane] < stop:
                stop = rows[lane]
    if live & ~warp[_PARKED] == 0 and mask != live:
        row = np.int64(-1)
    warp[_PARKED] &= ~mask
    return row, mask, stop


@inner
def _leave(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Note where the lanes of a mask stand."""
    for lane in range(LANES):
        if (mask >> lane) & 1:
            state.rows[r, w, lane] = row


@inner
def _exit(state, r, w, lanes):  # type: ignore[no-untyped-def]
    """End lanes; the last of a warp ends the warp."""
    warp = state.warps[r, w]
    warp[_LIVE] &= ~lanes
    if warp[_LIVE] != 0:
        return np.int64(0)
    warp[_STATE] = _DONE
    state.ctas[r, _WARPS] -= 1
    state.ctas[r, _PROGRESS] += 1
    barriers.ended(state, r, w)
    return queue.warp_ended(state, r, w)


@inner
def _needed(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Lanes that an instruction needs beside those of the mask."""
    operation = state.code[row, 0]
    if operation == _SHUFFLE:
        return exchange.members(state, r, w, row, mask)
    if operation == _BAR_WARP:
        return np.int64(state.registers[r, w, state.code[row, _A], exchange.lowest(mask)])
    return np.int64(_ALL) if operation in _WHOLE else np.int64(0)


@inner
def _loads_again(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run a load from global memory; return its fault, and whether it looks like one turn more of a spin."""
    code, warp = state.code[row], state.warps[r, w]
    slot = np.int64(state.pool[code[6]])
    lane = exchange.lowest(mask)
    registers = address_of(state.registers[r, w])
    before = load_u32(registers + SLOT_BYTES * slot + 4 * lane)
    address = load_i64(registers + SLOT_BYTES * code[_A] + 8 * lane)
    fault = call_at(state.knobs[_MEMORY], (table_of(state), r, w, row, mask))
    same = before == load_u32(registers + SLOT_BYTES * slot + 4 * lane)
    again = same and warp[_SPIN_ROW] == row and warp[_SPIN_EFFECTS] == warp[_EFFECTS] and warp[_SPIN_ADDRESS] == address
    warp[_SPIN_ROW], warp[_SPIN_EFFECTS], warp[_SPIN_ADDRESS] = row, warp[_EFFECTS], address
    return fault, again


@inner
def _clock(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Read the machine's clock: rows that the warp has run."""
    code = state.code[row]
    slot = address_of(state.registers[r, w]) + SLOT_BYTES * code[_D]
    for lane in range(LANES):
        if (mask >> lane) & 1:
            if code[_F] == 8:
                store_u64(slot + 8 * lane, state.warps[r, w, _STEPS])
            else:
                store_u32(slot + 4 * lane, state.warps[r, w, _STEPS])


@by_address
def matrix(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run ldmatrix or stmatrix."""
    state = machine_at(address)
    if state.code[row, 0] == _LDMATRIX:
        return ldmatrix(state, r, w, row, mask)
    return stmatrix(state, r, w, row, mask)


@by_address
def tensor_memory(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run tcgen05.alloc or dealloc."""
    state = machine_at(address)
    if state.code[row, 0] == _TC_ALLOC:
        return tc_alloc(state, r, w, row, mask)
    return tc_dealloc(state, r, w, row, mask)


@by_address
def multiply(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run mma.sync."""
    state = machine_at(address)
    state.counts[_C_FLOPS] += 2 * 16 * 8 * state.code[row, _F]
    return mma_sync(state, r, w, row, mask)


@inner
def _unit(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run one row that is no lane operation, branch or exit; return 0, a fault, or `barriers.BLOCK`."""
    operation = state.code[row, 0]
    arguments = (table_of(state), r, w, row, mask)
    if operation == _LOAD_GLOBAL:
        fault, again = _loads_again(state, r, w, row, mask)
        if fault == 0 and again:
            state.warps[r, w, _STATE] = _GLOBAL
            return np.int64(barriers.BLOCK)
        return fault
    if _FIRST_MEMORY <= operation <= _LAST_MEMORY:
        if operation in _STORES:
            state.warps[r, w, _EFFECTS] += 1
        return call_at(state.knobs[_ATOMIC if operation in _ATOMICS else _MEMORY], arguments)
    if _FIRST_EXCHANGE <= operation <= _LAST_EXCHANGE:
        return call_at(state.knobs[_COLLECT if operation in _COLLECTIONS else _EXCHANGE], arguments)
    if operation not in (_TRY_WAIT, _BAR_WARP):
        state.warps[r, w, _EFFECTS] += 1
    if _FIRST_BARRIER <= operation <= _LAST_BARRIER and operation != _ARRIVE_ASYNC:
        return call_at(state.knobs[_BARRIER], arguments)
    if operation == _MMA_SYNC:
        return call_at(state.knobs[_MULTIPLY], arguments)
    if operation in (_LDMATRIX, _STMATRIX):
        return call_at(state.knobs[_MATRIX], arguments)
    if operation in (_TC_ALLOC, _TC_DEALLOC):
        return call_at(state.knobs[_TENSOR_MEMORY], arguments)
    if operation == _TC_RELINQUISH:
        return np.int64(0)
    if operation == _CLOCK:
        _clock(state, r, w, row, mask)
        return np.int64(0)
    if operation == _TRAP:
        return raise_(state, _TRAPPED, r, w, row, exchange.lowest(mask), 0, 0, 0, 0)
    return call_at(state.knobs[_ISSUE], arguments)


@inner
def _split(state, r, w, row, mask, taken):  # type: ignore[no-untyped-def]
    """Send the lanes of a branch where they go."""
    _leave(state, r, w, row + 1, mask & ~taken)
    _leave(state, r, w, state.code[row, _IMMEDIATE], taken)


@by_address
def run(address, r, w, budget):  # type: ignore[no-untyped-def]
    """Run a warp for at most about `budget` rows; return 0 or a fault."""
    state = machine_at(address)
    warp, counts, knobs = state.warps[r, w], state.counts, state.knobs
    code, registers = address_of(state.code), address_of(state.registers[r, w])
    predicates = address_of(state.predicates[r, w])
    families = address_of(knobs) + 8 * _FAMILIES
    place = scratch()
    warp[_STATE] = _NOTHING
    left = np.int64(budget)
    while left > 0:
        row, mask, stop = _choose(state, r, w)
        if row < 0:
            row = state.rows[r, w, exchange.lowest(warp[_LIVE])]
            return raise_(state, _DIVERGENT, r, w, row, -1, warp[_LIVE], warp[_PARKED], 0, 0)
        careful = 1 if warp[_PARKED] != 0 else 0
        while True:
            store_i64(place, row)
            store_i64(place + 8, 0)
            store_i64(place + 16, 0)
            call_at(
                knobs[_STRAIGHT],
                (code, registers, predicates, mask, stop, left, careful, families, place),
            )
            row, steps = load_i64(place), load_i64(place + 8)
            active = _guarded(code + _ROW_BYTES * row, predicates, mask)
            ends = row == stop or steps >= left
            if not ends:
                steps += 1
                counts[_C_LANES] += population(active)
            left -= steps
            warp[_STEPS] += steps
            counts[_C_STEPS] += steps
            counts[_C_LANES] += load_i64(place + 16)
            if mask != _ALL:
                counts[_C_DIVERGENT] += steps
            if ends:
                _leave(state, r, w, row, mask)
                break
            operation = state.code[row, 0]
            if operation == _BRANCH:
                _split(state, r, w, row, mask, active)
                break
            if operation == _EXIT:
                _leave(state, r, w, row + 1, mask)
                fault = _exit(state, r, w, active)
                if fault != 0 or warp[_STATE] == _DONE:
                    return fault
                break
            absent = _needed(state, r, w, row, active) & warp[_LIVE] & ~active
            if absent != 0:
                if absent & mask != 0:  # their guard is false: they will never be here
                    return raise_(state, _DIVERGENT, r, w, row, -1, active, absent, 0, 0)
                warp[_PARKED] |= active
                _leave(state, r, w, row, active)
                _leave(state, r, w, row + 1, mask & ~active)
                break
            fault = _unit(state, r, w, row, active)
            row += 1
            if fault != 0:
                warp[_ROW] = row - 1
                _leave(state, r, w, row, mask)
                if fault == barriers.BLOCK:
                    counts[_C_SPINS] += 1
                    return np.int64(0)
                return fault
    warp[_ROW] = state.rows[r, w, exchange.lowest(warp[_LIVE])]
    return np.int64(0)
