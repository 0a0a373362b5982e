"""What a warp can wait for: named barriers, mbarriers, the barrier of a cluster, and the rest of itself.

Contract: `step(state, r, w, row, mask)` runs one row of this group and returns 0, a fault, or BLOCK: the row is done,
but the warp must not go on before `ready` says so. `complete_tx(state, r, address, bytes)` and
`arrive(state, r, address, count)` are what asynchronous operations call when they have had their effect. Addresses are
shared::cluster ones.
A try_wait that fails answers false and blocks the warp; when nothing else can go on, the schedule lets it look again
(PTX: the wait may end before the phase does), so that a program which only peeks is not held up for ever.
Numbers: PTX ISA, "bar, barrier": 16 barriers a CTA, arrivals count whole warps; warps that have ended are not waited
for; "barrier.cluster": all threads that have not ended.
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx import mbarrier
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.inner import inner
from fa4verify.ptx.lane_ir import LANES, SLOT_BYTES
from fa4verify.ptx.mbarrier import arrive, complete_tx
from fa4verify.ptx.operations import Column, Op
from fa4verify.ptx.raw import address_of, load_u32
from fa4verify.ptx.state import Cta, Fault, Waiting, Warp

__all__ = ["BLOCK", "arrive", "complete_tx", "ended", "ready", "step"]

BLOCK = -1
NAMED = 16
_D, _A, _B, _F, _IMM = (int(x) for x in (Column.D, Column.A, Column.B, Column.F, Column.IMM))
_SYNC, _ARRIVE, _WARP_SYNC = int(Op.BAR_SYNC), int(Op.BAR_ARRIVE), int(Op.BAR_WARP)
_INIT, _INVAL, _MB_ARRIVE = int(Op.MBARRIER_INIT), int(Op.MBARRIER_INVAL), int(Op.MBARRIER_ARRIVE)
_EXPECT, _TRY_WAIT = int(Op.MBARRIER_EXPECT_TX), int(Op.MBARRIER_TRY_WAIT)
_CLUSTER_ARRIVE = int(Op.CLUSTER_ARRIVE)
_MISUSE = int(Fault.BARRIER_MISUSE)
_FIRST, _SIZE, _PROGRESS, _WARPS = int(Cta.FIRST), int(Cta.SIZE), int(Cta.PROGRESS), int(Cta.WARPS)
_C_ARRIVED, _C_GENERATION = int(Cta.CLUSTER_ARRIVED), int(Cta.CLUSTER_GENERATION)
_STATE, _BARRIER, _GENERATION, _PARITY = int(Warp.STATE), int(Warp.BARRIER), int(Warp.GENERATION), int(Warp.PARITY)
_W_GENERATION, _W_ROW = int(Warp.CLUSTER_GENERATION), int(Warp.ROW)
_AT_NAMED, _AT_MBARRIER, _AT_CLUSTER = int(Waiting.NAMED_BARRIER), int(Waiting.MBARRIER), int(Waiting.CLUSTER_BARRIER)
# Not literals: numba would compile a callee for each.
_ZERO, _ONE = np.int64(0), np.int64(1)
_ARRIVED, _ROUND, _EXPECTED = 0, 1, 2  # columns of state.barriers


@inner
def _complete(state, r, barrier):  # type: ignore[no-untyped-def]
    """Open a named barrier where everybody has arrived."""
    entry = state.barriers[r, barrier]
    expected = entry[_EXPECTED] if entry[_EXPECTED] >= 0 else LANES * state.ctas[r, _WARPS]
    if entry[_ARRIVED] > 0 and entry[_ARRIVED] >= expected:
        entry[_ARRIVED] = 0
        entry[_ROUND] += 1
        state.ctas[r, _PROGRESS] += 1


@inner
def _named(state, r, w, row, lane):  # type: ignore[no-untyped-def]
    """Arrive at a named barrier and, for sync, wait."""
    code = state.code[row]
    barrier = np.int64(state.registers[r, w, code[_A], lane])
    threads = np.int64(state.registers[r, w, code[_B], lane]) if code[_B] >= 0 else np.int64(-1)
    if barrier >= NAMED or threads == 0 or (threads % LANES > 0 and threads > 0):
        return raise_(state, _MISUSE, r, w, row, -1, barrier, threads, 0, 0)
    entry = state.barriers[r, barrier]
    if entry[_ARRIVED] > 0 and entry[_EXPECTED] != threads:
        return raise_(state, _MISUSE, r, w, row, -1, barrier, threads, entry[_EXPECTED], entry[_ARRIVED])
    before = entry[_ROUND]
    entry[_EXPECTED] = threads
    entry[_ARRIVED] += LANES
    if threads > 0 and entry[_ARRIVED] > threads:
        return raise_(state, _MISUSE, r, w, row, -1, barrier, threads, threads, entry[_ARRIVED])
    _complete(state, r, barrier)
    if code[0] == _ARRIVE or entry[_ROUND] != before:
        return np.int64(0)
    warp = state.warps[r, w]
    warp[_STATE], warp[_BARRIER], warp[_GENERATION] = _AT_NAMED, barrier, before
    return np.int64(BLOCK)


@inner
def _complete_cluster(state, first):  # type: ignore[no-untyped-def]
    """Open the cluster's barrier where every warp that lives has arrived."""
    living = np.int64(0)
    for q in range(first, first + state.ctas[first, _SIZE]):
        living += state.ctas[q, _WARPS]
    if state.ctas[first, _C_ARRIVED] > 0 and state.ctas[first, _C_ARRIVED] >= living:
        state.ctas[first, _C_ARRIVED] = 0
        state.ctas[first, _C_GENERATION] += 1
        state.ctas[first, _PROGRESS] += 1


@inner
def _cluster(state, r, w, row):  # type: ignore[no-untyped-def]
    """Arrive at the cluster's barrier, or wait for the phase that the warp arrived at."""
    first = state.ctas[r, _FIRST]
    warp = state.warps[r, w]
    target = warp[_W_GENERATION]  # of the arrival that no wait has followed yet; 0: there is none
    arrives = state.code[row, 0] == _CLUSTER_ARRIVE
    if arrives != (target == 0):
        return raise_(state, _MISUSE, r, w, row, -1, -1, arrives, 0, 0)
    if arrives:
        warp[_W_GENERATION] = state.ctas[first, _C_GENERATION] + 1
        state.ctas[first, _C_ARRIVED] += 1
        _complete_cluster(state, first)
        return np.int64(0)
    warp[_W_GENERATION] = 0
    if target <= state.ctas[first, _C_GENERATION]:
        return np.int64(0)
    warp[_STATE], warp[_GENERATION] = _AT_CLUSTER, target
    return np.int64(BLOCK)


@inner
def _locate_fault(state, r, w, row, lane, fault):  # type: ignore[no-untyped-def]
    """Say who caused a fault that an mbarrier's function has noticed."""
    if fault != 0 and state.fault[1] < 0:
        state.fault[1], state.fault[2], state.fault[3], state.fault[4] = row, r, w, lane
    return fault


@inner
def _mbarrier(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run an operation on mbarriers for each lane."""
    code = state.code[row]
    registers = address_of(state.registers[r, w])
    base, counts = registers + SLOT_BYTES * code[_A], registers + SLOT_BYTES * code[_B]
    for lane in range(LANES):
        if not (mask >> lane) & 1:
            continue
        address = (np.int64(load_u32(base + 4 * lane)) + code[_IMM]) & 0xFFFFFFFF
        count = np.int64(load_u32(counts + 4 * lane)) if code[_B] >= 0 else np.int64(1)
        if code[0] == _INIT:
            fault = mbarrier.init(state, r, address, count)
        elif code[0] == _INVAL:
            fault = mbarrier.invalidate(state, r, address)
        elif code[0] == _MB_ARRIVE:
            fault = arrive(state, r, address, count)
        else:
            fault = mbarrier.change(state, r, address, _ONE if code[_F] == 1 else _ZERO, count, _ZERO)
        if fault != 0:
            return _locate_fault(state, r, w, row, lane, fault)
    return np.int64(0)


@inner
def _try_wait(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Answer whether the phase of each lane's parity is over; block where one is not."""
    code = state.code[row]
    registers = address_of(state.registers[r, w])
    base, parities = registers + SLOT_BYTES * code[_A], registers + SLOT_BYTES * code[_B]
    done = np.int64(0)
    last_address, last_parity, waiting = np.int64(-1), np.int64(0), False
    for lane in range(LANES):
        if not (mask >> lane) & 1:
            continue
        address = (np.int64(load_u32(base + 4 * lane)) + code[_IMM]) & 0xFFFFFFFF
        wanted = np.int64(load_u32(parities + 4 * lane)) & 1
        if address != last_address:
            last_address, last_parity = address, mbarrier.parity_of(state, r, address)
            if last_parity < 0:
                return _locate_fault(state, r, w, row, lane, state.fault[0])
        if last_parity != wanted:
            done |= np.int64(1) << lane
        elif not waiting:
            waiting = True
            state.warps[r, w, _BARRIER], state.warps[r, w, _PARITY] = address, wanted
    kept = np.int64(state.predicates[r, w, code[_D]]) & ~mask
    state.predicates[r, w, code[_D]] = kept | done
    if not waiting:
        return np.int64(0)
    state.warps[r, w, _STATE] = _AT_MBARRIER
    return np.int64(BLOCK)


@by_address
def step(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run one row of this group for the lanes of a mask."""
    state = machine_at(address)
    operation = state.code[row, 0]
    if operation == _TRY_WAIT:
        return _try_wait(state, r, w, row, mask)
    if _INIT <= operation <= _EXPECT:
        return _mbarrier(state, r, w, row, mask)
    if operation in (_SYNC, _ARRIVE):
        lane = 0
        while not (mask >> lane) & 1:
            lane += 1
        return _named(state, r, w, row, lane)
    if operation == _WARP_SYNC:
        return np.int64(0)
    return _cluster(state, r, w, row)


@inner
def ready(state, r, w):  # type: ignore[no-untyped-def]
    """Whether what a blocked warp waits for has happened; a fault is left in `state.fault`."""
    warp = state.warps[r, w]
    if warp[_STATE] == _AT_NAMED:
        return state.barriers[r, warp[_BARRIER], _ROUND] != warp[_GENERATION]
    if warp[_STATE] == _AT_CLUSTER:
        return warp[_GENERATION] <= state.ctas[state.ctas[r, _FIRST], _C_GENERATION]
    if warp[_STATE] == _AT_MBARRIER:
        parity = mbarrier.parity_of(state, r, warp[_BARRIER])
        if parity < 0:
            _locate_fault(state, r, w, warp[_W_ROW], -_ONE, state.fault[0])
        return parity != warp[_PARITY]
    return True


@inner
def ended(state, r, w):  # type: ignore[no-untyped-def]
    """Take back what a warp that has ended said of the cluster's barrier, and open what waits only for such warps."""
    first = state.ctas[r, _FIRST]
    if state.warps[r, w, _W_GENERATION] > state.ctas[first, _C_GENERATION]:
        state.ctas[first, _C_ARRIVED] -= 1
    for barrier in range(NAMED):
        if state.barriers[r, barrier, _EXPECTED] < 0:
            _complete(state, r, barrier)
    _complete_cluster(state, first)
