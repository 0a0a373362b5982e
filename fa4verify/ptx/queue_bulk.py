"""Bulk copies and reductions in the queue of asynchronous operations.

Contract: queue.py calls `fill` and `effect` by address, in a kernel that has such an instruction (linkage.py).
"""

from __future__ import annotations

from fa4verify.ptx.bulk import (
    issue_bulk_load,
    issue_bulk_shared,
    issue_bulk_store,
    perform_bulk_load,
    perform_bulk_reduce,
    perform_bulk_shared,
    perform_bulk_store,
)
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.operations import Op, Pending

_KIND = int(Pending.KIND)
_LOAD, _SHARED, _STORE = int(Op.BULK_LOAD), int(Op.BULK_SHARED), int(Op.BULK_STORE)


@by_address
def fill(address, r, w, row, lane, i):  # type: ignore[no-untyped-def]
    """Read the registers of one operation into entry `i`."""
    state = machine_at(address)
    entry = state.pending[r, i]
    if entry[_KIND] == _LOAD:
        return issue_bulk_load(state, r, w, row, lane, entry)
    if entry[_KIND] == _SHARED:
        return issue_bulk_shared(state, r, w, row, lane, entry)
    return issue_bulk_store(state, r, w, row, lane, entry)


@by_address
def effect(address, r, i):  # type: ignore[no-untyped-def]
    """Have the effect of entry `i` of a CTA."""
    state = machine_at(address)
    entry = state.pending[r, i]
    if entry[_KIND] == _LOAD:
        return perform_bulk_load(state, r, entry)
    if entry[_KIND] == _SHARED:
        return perform_bulk_shared(state, r, entry)
    if entry[_KIND] == _STORE:
        return perform_bulk_store(state, r, entry)
    return perform_bulk_reduce(state, r, entry)
