"""cp.async.bulk.tensor and cp.reduce.async.bulk.tensor: boxes of a tensor, by its map.

Contract: `issue_*` reads the registers of one lane and fills X0 ... of an entry; `perform_*` has the effect, later.
Both return 0 or a fault. The queue fills the other fields of the entry. X0 ... hold:

    TENSOR_LOAD    X0 shared address, X1 address of the map, X2 mbarrier, X3 ... X7 coordinates, X8 multicast mask or -1
    TENSOR_STORE   X0 shared address, X1 address of the map, X3 ... X7 coordinates
    TENSOR_REDUCE  as TENSOR_STORE

The map is read when the copy is performed.
"""

from __future__ import annotations

from numba import njit

from fa4verify.ptx.fault import raise_
from fa4verify.ptx.operations import Column, Pending
from fa4verify.ptx.registers import signed32, value32, value64
from fa4verify.ptx.state import Fault


@njit(cache=True)
def _issue(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value64(state, r, w, code[Column.A], lane)
    for i in range(code[Column.F]):
        entry[Pending.X3 + i] = signed32(state, r, w, state.pool[code[Column.E] + i], lane)
    for i in range(code[Column.F], 5):
        entry[Pending.X3 + i] = 0


@njit(cache=True)
def issue_tensor_load(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read addresses, coordinates and the multicast mask."""
    _issue(state, r, w, row, lane, entry)
    code = state.code[row]
    entry[Pending.X2] = value32(state, r, w, code[Column.C], lane) + code[Column.G]
    entry[Pending.X8] = -1
    if code[Column.B] >= 0:
        entry[Pending.X8] = value32(state, r, w, code[Column.B], lane) & 0xFFFF
    return 0


@njit(cache=True)
def issue_tensor_store(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read addresses and coordinates; also of TENSOR_REDUCE."""
    _issue(state, r, w, row, lane, entry)
    return 0


@njit(cache=True)
def perform_tensor_load(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy a box to shared memory (of every CTA of the mask), zeros outside the tensor; complete_tx the box's bytes."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@njit(cache=True)
def perform_tensor_store(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy a box from shared memory; what lies outside the tensor is dropped."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@njit(cache=True)
def perform_tensor_reduce(state, r, entry):  # type: ignore[no-untyped-def]
    """Combine a box in shared memory with the tensor, element by element."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)
