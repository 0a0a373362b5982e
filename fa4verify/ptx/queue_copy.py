"""cp.async and the arrivals behind it in the queue of asynchronous operations.

Contract: queue.py calls `fill` and `effect` by address, in a kernel that has such an instruction (linkage.py).
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.bulk import issue_cp_async, perform_cp_async
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.mbarrier import arrive
from fa4verify.ptx.operations import Column, Op, Pending
from fa4verify.ptx.registers import value32

_A, _IMM = int(Column.A), int(Column.IMM)
_KIND, _X0, _COPY = int(Pending.KIND), int(Pending.X0), int(Op.CP_ASYNC)
_ONE = np.int64(1)  # no literal: numba would compile a callee for each


@by_address
def fill(address, r, w, row, lane, i):  # type: ignore[no-untyped-def]
    """Read the registers of one operation into entry `i`."""
    state = machine_at(address)
    entry = state.pending[r, i]
    if entry[_KIND] == _COPY:
        return issue_cp_async(state, r, w, row, lane, entry)
    entry[_X0] = value32(state, r, w, state.code[row, _A], lane) + state.code[row, _IMM]
    return np.int64(0)


@by_address
def effect(address, r, i):  # type: ignore[no-untyped-def]
    """Have the effect of entry `i` of a CTA."""
    state = machine_at(address)
    entry = state.pending[r, i]
    if entry[_KIND] == _COPY:
        return perform_cp_async(state, r, entry)
    return arrive(state, r, entry[_X0], _ONE)
