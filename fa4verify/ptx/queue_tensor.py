"""Tensor copies (TMA) in the queue of asynchronous operations.

Contract: queue.py calls `fill` and `effect` by address, in a kernel that has such an instruction (linkage.py).
"""

from __future__ import annotations

from fa4verify.ptx.calls import by_address
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.operations import Op, Pending
from fa4verify.ptx.tma import (
    issue_tensor_load,
    issue_tensor_store,
    perform_tensor_load,
    perform_tensor_reduce,
    perform_tensor_store,
)

_KIND = int(Pending.KIND)
_LOAD, _STORE = int(Op.TENSOR_LOAD), int(Op.TENSOR_STORE)


@by_address
def fill(address, r, w, row, lane, i):  # type: ignore[no-untyped-def]
    """Read the registers of one operation into entry `i`."""
    state = machine_at(address)
    entry = state.pending[r, i]
    if entry[_KIND] == _LOAD:
        return issue_tensor_load(state, r, w, row, lane, entry)
    return issue_tensor_store(state, r, w, row, lane, entry)


@by_address
def effect(address, r, i):  # type: ignore[no-untyped-def]
    """Have the effect of entry `i` of a CTA."""
    state = machine_at(address)
    entry = state.pending[r, i]
    if entry[_KIND] == _LOAD:
        return perform_tensor_load(state, r, entry)
    if entry[_KIND] == _STORE:
        return perform_tensor_store(state, r, entry)
    return perform_tensor_reduce(state, r, entry)
