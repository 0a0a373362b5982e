"""tcgen05 in the queue of asynchronous operations.

Contract: queue.py calls `fill` and `effect` by address, in a kernel that has such an instruction (linkage.py).
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.calls import by_address
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.knobs import COUNT
from fa4verify.ptx.operations import Column, Op, Pending
from fa4verify.ptx.tcgen05 import (
    issue_tc_commit,
    issue_tc_cp,
    issue_tc_ld,
    perform_tc_commit,
    perform_tc_cp,
    perform_tc_ld,
    perform_tc_st,
)
from fa4verify.ptx.tcgen05_mma import issue_tc_mma, perform_tc_mma

_IMM, _KIND, _ROW, _X3 = int(Column.IMM), int(Pending.KIND), int(Pending.ROW), int(Pending.X3)
_MMA, _CP, _COMMIT, _LD = int(Op.TC_MMA), int(Op.TC_CP), int(Op.TC_COMMIT), int(Op.TC_LD)
_FLOPS = int(COUNT.MMA_FLOPS)
_K = np.array([16, 8, 32, 0])  # by kind: f16, tf32, f8f6f4


@by_address
def fill(address, r, w, row, lane, i):  # type: ignore[no-untyped-def]
    """Read the registers of one operation into entry `i`."""
    state = machine_at(address)
    entry = state.pending[r, i]
    kind = entry[_KIND]
    if kind == _MMA:
        return issue_tc_mma(state, r, w, row, lane, entry)
    if kind == _COMMIT:
        return issue_tc_commit(state, r, w, row, lane, entry)
    if kind == _CP:
        return issue_tc_cp(state, r, w, row, lane, entry)
    return issue_tc_ld(state, r, w, row, lane, entry)


@by_address
def effect(address, r, i):  # type: ignore[no-untyped-def]
    """Have the effect of entry `i` of a CTA."""
    state = machine_at(address)
    entry = state.pending[r, i]
    kind = entry[_KIND]
    if kind == _MMA:
        shape = entry[_X3]  # the instruction descriptor: N / 8 in bits 17-22, M / 16 in bits 24-28
        k = _K[(state.code[entry[_ROW], _IMM] >> 4) & 3]
        state.counts[_FLOPS] += 2 * (((shape >> 17) & 63) << 3) * (((shape >> 24) & 31) << 4) * k
        return perform_tc_mma(state, r, entry)
    if kind == _COMMIT:
        return perform_tc_commit(state, r, entry)
    if kind == _CP:
        return perform_tc_cp(state, r, entry)
    if kind == _LD:
        return perform_tc_ld(state, r, entry)
    return perform_tc_st(state, r, entry)
