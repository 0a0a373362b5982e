"""Asynchronous operations: from the instruction that issues one to the moment of its effect.

Contract: `issue` runs one row of this group for the lanes of a mask. Eagerly, an operation is performed at once; in
late schedules it becomes an entry of `pending` and is performed only when something waits for it: a load, a copy
between CTAs and an arrival behind cp.async when a warp waits on their mbarrier (`land`), wgmma at wait_group, bulk
stores and reductions at wait_group of their lane, cp.async at its wait_group, and tcgen05.mma, cp and commit in order
up to the commit whose mbarrier somebody waits on. So an operand that is overwritten too early, or a result that is read
too early, changes the answer.
Not late: tcgen05.ld (FA4's PTX reads its registers without wait::ld, most of the time: 864 loads, 102 waits in 33
kernels for sm_100a; ptxas orders them by their registers), tcgen05.st (its registers may be overwritten at once, the
entry would have to carry them), and what wait_group.read leaves open (the store is complete by then).
Both ways run through the same functions; `finish` performs what nobody waited for when a cluster has ended, and faults
where that was a load: it would land in memory that another CTA may have by then.
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx import mbarrier
from fa4verify.ptx.calls import by_address, call_at
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.handle import machine_at, table_of
from fa4verify.ptx.inner import inner
from fa4verify.ptx.knobs import CALL, COUNT, KNOB
from fa4verify.ptx.lane_ir import LANES
from fa4verify.ptx.operations import PENDING, RANK_SHIFT, Column, Op, Pending
from fa4verify.ptx.registers import value32
from fa4verify.ptx.state import Cta, Fault, Warp

_A, _F, _IMM = int(Column.A), int(Column.F), int(Column.IMM)
_KIND, _ROW, _WARP, _GROUP, _LANE, _STATE = (int(Pending[x]) for x in ("KIND", "ROW", "WARP", "GROUP", "LANE", "STATE"))
_X0, _X1, _X2, _X8 = (int(Pending[x]) for x in ("X0", "X1", "X2", "X8"))
_FREE, _WAITS = 0, 1
_ZERO, _ONE = np.int64(0), np.int64(1)  # no literals: numba would compile a callee for each

_CP_ASYNC, _CP_COMMIT, _CP_WAIT = int(Op.CP_ASYNC), int(Op.CP_COMMIT), int(Op.CP_WAIT)
_BULK_LOAD, _BULK_SHARED, _BULK_STORE = int(Op.BULK_LOAD), int(Op.BULK_SHARED), int(Op.BULK_STORE)
_BULK_REDUCE, _BULK_COMMIT, _BULK_WAIT = int(Op.BULK_REDUCE), int(Op.BULK_COMMIT), int(Op.BULK_WAIT)
_TENSOR_LOAD, _TENSOR_STORE, _TENSOR_REDUCE = int(Op.TENSOR_LOAD), int(Op.TENSOR_STORE), int(Op.TENSOR_REDUCE)
_BULK_WRITES = (_BULK_STORE, _BULK_REDUCE, _TENSOR_STORE, _TENSOR_REDUCE)
_WGMMA, _WGMMA_COMMIT, _WGMMA_WAIT = int(Op.WGMMA), int(Op.WGMMA_COMMIT), int(Op.WGMMA_WAIT)
_TC_MMA, _TC_CP, _TC_COMMIT = int(Op.TC_MMA), int(Op.TC_CP), int(Op.TC_COMMIT)
_TC_LD, _TC_ST, _TC_WAIT_LD, _TC_WAIT_ST = int(Op.TC_LD), int(Op.TC_ST), int(Op.TC_WAIT_LD), int(Op.TC_WAIT_ST)
_ARRIVE_ASYNC = int(Op.MBARRIER_ARRIVE_ASYNC)

_FIRST, _SIZE, _ISSUED, _PENDING = int(Cta.FIRST), int(Cta.SIZE), int(Cta.ISSUED), int(Cta.PENDING)
_WGMMA_GROUP = int(Warp.WGMMA_GROUP)
_FILL, _EFFECT = int(CALL.FILL_COPY), int(CALL.EFFECT_COPY)
_LATE, _LEFT = int(KNOB.LATE), int(COUNT.LEFT)
_FULL, _AT_EXIT = int(Fault.QUEUE_FULL), int(Fault.PENDING_AT_EXIT)
_OFFSET = (1 << RANK_SHIFT) - 1
_BULK_GROUPS = LANES  # where a warp's bulk groups start in state.groups


@inner
def _family(kind):  # type: ignore[no-untyped-def]
    """Offset behind FILL_COPY and EFFECT_COPY of what knows an operation."""
    if kind == _WGMMA:
        return 3
    if kind in (_TENSOR_LOAD, _TENSOR_STORE, _TENSOR_REDUCE):
        return 2
    if kind in (_BULK_LOAD, _BULK_SHARED, _BULK_STORE, _BULK_REDUCE):
        return 1
    return 0 if kind in (_CP_ASYNC, _ARRIVE_ASYNC) else 4


@inner
def _fill(state, r, w, row, lane, i):  # type: ignore[no-untyped-def]
    """Read the registers of one operation into entry `i`."""
    entry = state.pending[r, i]
    kind = state.code[row, 0]
    entry[_KIND], entry[_ROW], entry[_WARP], entry[_LANE] = kind, row, w, lane
    entry[_STATE], entry[_GROUP] = _WAITS, state.ctas[r, _ISSUED]
    if kind == _WGMMA:
        entry[_GROUP] = state.warps[r, w, _WGMMA_GROUP]
    elif kind in _BULK_WRITES:
        entry[_GROUP] = state.groups[r, w, _BULK_GROUPS + lane]
    elif kind == _CP_ASYNC:
        entry[_GROUP] = state.groups[r, w, lane]
    return call_at(state.knobs[_FILL + _family(kind)], (table_of(state), r, w, row, lane, i))


@inner
def _perform(state, r, i):  # type: ignore[no-untyped-def]
    """Have the effect of an entry and free it; a fault that names no row is the entry's."""
    entry = state.pending[r, i]
    fault = call_at(state.knobs[_EFFECT + _family(entry[_KIND])], (table_of(state), r, i))
    entry[_STATE] = _FREE
    if fault != 0 and state.fault[1] < 0:
        state.fault[1], state.fault[2], state.fault[3], state.fault[4] = entry[_ROW], r, entry[_WARP], entry[_LANE]
    return fault


@inner
def _compact(state, r):  # type: ignore[no-untyped-def]
    """Close the gaps that performed entries have left, keeping the order of issue."""
    pending, kept = state.pending, 0
    for i in range(state.ctas[r, _PENDING]):
        if pending[r, i, _STATE] != _FREE:
            if i != kept:
                for field in range(PENDING):
                    pending[r, kept, field] = pending[r, i, field]
            kept += 1
    state.ctas[r, _PENDING] = kept


@inner
def _drain(state, r, w, mask, operation, keep):  # type: ignore[no-untyped-def]
    """Perform what a wait of this warp waits for: all but its last `keep` groups."""
    for i in range(state.ctas[r, _PENDING]):
        entry = state.pending[r, i]
        if entry[_WARP] != w or entry[_STATE] == _FREE:
            continue
        kind, lane = entry[_KIND], entry[_LANE]
        if operation == _WGMMA_WAIT:
            due = kind == _WGMMA and entry[_GROUP] < state.warps[r, w, _WGMMA_GROUP] - keep
        elif operation == _CP_WAIT:
            due = kind == _CP_ASYNC and (mask >> lane) & 1 == 1
            due = due and (keep < 0 or entry[_GROUP] < state.groups[r, w, lane] - keep)
        else:
            due = kind in _BULK_WRITES and (mask >> lane) & 1 == 1
            due = due and entry[_GROUP] < state.groups[r, w, _BULK_GROUPS + lane] - keep
        if due:
            fault = _perform(state, r, i)
            if fault != 0:
                return fault
    _compact(state, r)
    return np.int64(0)


@inner
def _signals(entry, address):  # type: ignore[no-untyped-def]
    """Whether an entry will arrive at, or bring bytes to, the mbarrier at a shared::cluster address."""
    kind = entry[_KIND]
    if kind in (_BULK_LOAD, _BULK_SHARED):
        return entry[_X2] == address
    rank = address >> RANK_SHIFT
    if kind == _TENSOR_LOAD:
        if entry[_X8] >= 0:
            return entry[_X2] & _OFFSET == address & _OFFSET and (entry[_X8] >> rank) & 1 == 1
        return entry[_X2] == address
    if kind == _TC_COMMIT:
        if entry[_X1] >= 0:
            return entry[_X0] & _OFFSET == address & _OFFSET and (entry[_X1] >> rank) & 1 == 1
        return entry[_X0] == address
    return kind == _ARRIVE_ASYNC and entry[_X0] == address


@inner
def _before(state, r, i):  # type: ignore[no-untyped-def]
    """Perform what must have happened before entry `i`: earlier tcgen05 operations or cp.async of the same thread."""
    last = state.pending[r, i]
    for j in range(i):
        entry = state.pending[r, j]
        if entry[_STATE] == _FREE or entry[_WARP] != last[_WARP]:
            continue
        if last[_KIND] == _TC_COMMIT:
            due = entry[_KIND] in (_TC_MMA, _TC_CP, _TC_COMMIT)
        else:
            due = entry[_KIND] == _CP_ASYNC and entry[_LANE] == last[_LANE]
        if due:
            fault = _perform(state, r, j)
            if fault != 0:
                return fault
    return np.int64(0)


@by_address
def land(table, r, address, backwards):  # type: ignore[no-untyped-def]
    """Perform everything in the cluster of CTA `r` that completes the mbarrier which a warp waits on.

    `backwards`: the operation issued last first, where nothing orders them.
    """
    state = machine_at(table)
    first = state.ctas[r, _FIRST]
    for q in range(first, first + state.ctas[r, _SIZE]):
        count, landed = state.ctas[q, _PENDING], False
        for step in range(count):
            i = count - 1 - step if backwards else step
            entry = state.pending[q, i]
            if entry[_STATE] == _FREE or not _signals(entry, address):
                continue
            fault = np.int64(0)
            if entry[_KIND] in (_TC_COMMIT, _ARRIVE_ASYNC):
                fault = _before(state, q, i)
            if fault == 0:
                fault = _perform(state, q, i)
            if fault != 0:
                return fault
            landed = True
        if landed:
            _compact(state, q)
    return np.int64(0)


@inner
def _enter(state, r, w, row, lane):  # type: ignore[no-untyped-def]
    """Issue one operation, and perform it unless the schedule is late."""
    count = state.ctas[r, _PENDING]
    if count >= state.pending.shape[1]:
        return raise_(state, _FULL, r, w, row, lane, count, 0, 0, 0)
    entry = state.pending[r, count]
    fault = _fill(state, r, w, row, lane, count)
    if fault != 0:
        return fault
    state.ctas[r, _ISSUED] += 1
    if state.knobs[_LATE] == 0 or entry[_KIND] in (_TC_LD, _TC_ST):
        return _perform(state, r, count)
    state.ctas[r, _PENDING] = count + 1
    return np.int64(0)


@by_address
def issue(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run one row of this group; for operations of the whole warp the caller has checked that no lane is missing."""
    state = machine_at(address)
    code = state.code[row]
    operation = code[0]
    if operation in (_CP_COMMIT, _BULK_COMMIT):
        start = 0 if operation == _CP_COMMIT else _BULK_GROUPS
        for lane in range(LANES):
            if (mask >> lane) & 1:
                state.groups[r, w, start + lane] += 1
        return np.int64(0)
    if operation == _WGMMA_COMMIT:
        state.warps[r, w, _WGMMA_GROUP] += 1
        return np.int64(0)
    if operation in (_CP_WAIT, _BULK_WAIT, _WGMMA_WAIT, _TC_WAIT_LD, _TC_WAIT_ST):
        if state.ctas[r, _PENDING] == 0 or operation in (_TC_WAIT_LD, _TC_WAIT_ST):
            return np.int64(0)
        return _drain(state, r, w, mask, operation, code[_IMM])
    whole = operation in (_WGMMA, _TC_LD, _TC_ST)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            if operation == _ARRIVE_ASYNC and code[_F] != 1:
                barrier = value32(state, r, w, code[_A], lane) + code[_IMM]
                fault = mbarrier.change(state, r, barrier, -_ONE, _ZERO, _ZERO)  # the phase expects one arrival more
                if fault != 0:
                    return fault
            fault = _enter(state, r, w, row, lane)
            if fault != 0:
                return fault
            if whole:
                break
    return np.int64(0)


@inner
def warp_ended(state, r, w):  # type: ignore[no-untyped-def]
    """Fault where a warp ends before its own wgmma."""
    for i in range(state.ctas[r, _PENDING]):
        entry = state.pending[r, i]
        if entry[_KIND] == _WGMMA and entry[_WARP] == w:
            return raise_(state, _AT_EXIT, r, w, entry[_ROW], -1, entry[_KIND], 0, 0, 0)
    return np.int64(0)


@by_address
def finish(address, first):  # type: ignore[no-untyped-def]
    """Perform what nobody waited for in a cluster that has ended; fault where it was to land in shared memory."""
    state = machine_at(address)
    for q in range(first, first + state.ctas[first, _SIZE]):
        for i in range(state.ctas[q, _PENDING]):
            entry = state.pending[q, i]
            if entry[_KIND] in (_TENSOR_LOAD, _BULK_LOAD, _BULK_SHARED):
                return raise_(state, _AT_EXIT, q, entry[_WARP], entry[_ROW], entry[_LANE], entry[_KIND], 0, 0, 0)
            state.counts[_LEFT] += 1
            fault = _perform(state, q, i)
            if fault != 0:
                return fault
        state.ctas[q, _PENDING] = 0
    return np.int64(0)
