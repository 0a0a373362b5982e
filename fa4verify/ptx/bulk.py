"""Copies of bytes: cp.async, cp.async.bulk, cp.reduce.async.bulk.

Contract: `issue_*` reads the registers of one lane and fills X0 ... of an entry; `perform_*` has the effect, later.
Both return 0 or a fault. The queue fills the other fields of the entry. X0 ... hold:

    CP_ASYNC     X0 shared address, X1 global address, X2 bytes to read; the rest of the row's F bytes become zeros
    BULK_LOAD    X0 shared address, X1 global address, X2 mbarrier, X3 bytes
    BULK_SHARED  X0 shared::cluster address, X1 shared address of the source, X2 mbarrier, X3 bytes
    BULK_STORE   X0 global address, X1 shared address, X3 bytes
    BULK_REDUCE  as BULK_STORE

Numbers: PTX ISA, "cp.async.bulk": addresses and size are multiples of 16 bytes.
"""

from __future__ import annotations

from numba import njit

from fa4verify.ptx.fault import raise_
from fa4verify.ptx.operations import Column, Pending
from fa4verify.ptx.registers import value32, value64
from fa4verify.ptx.state import Fault


@njit(cache=True)
def issue_cp_async(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and, where the instruction has one, the bytes to read."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value64(state, r, w, code[Column.A], lane) + code[Column.C]
    entry[Pending.X2] = code[Column.F]
    if code[Column.B] >= 0:
        entry[Pending.X2] = value32(state, r, w, code[Column.B], lane)
    return 0


@njit(cache=True)
def issue_bulk_load(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and the size."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value64(state, r, w, code[Column.A], lane)
    entry[Pending.X2] = value32(state, r, w, code[Column.C], lane) + code[Column.G]
    entry[Pending.X3] = value32(state, r, w, code[Column.B], lane)
    return 0


@njit(cache=True)
def issue_bulk_shared(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and the size."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value32(state, r, w, code[Column.A], lane)
    entry[Pending.X2] = value32(state, r, w, code[Column.C], lane) + code[Column.G]
    entry[Pending.X3] = value32(state, r, w, code[Column.B], lane)
    return 0


@njit(cache=True)
def issue_bulk_store(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and the size; also of BULK_REDUCE."""
    code = state.code[row]
    entry[Pending.X0] = value64(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value32(state, r, w, code[Column.A], lane)
    entry[Pending.X3] = value32(state, r, w, code[Column.B], lane)
    return 0


@njit(cache=True)
def _misaligned(state, r, entry):  # type: ignore[no-untyped-def]
    """Fault of a bulk copy whose addresses or size are no multiples of 16, else 0."""
    for i in (Pending.X0, Pending.X1, Pending.X3):
        if entry[i] & 15:
            return raise_(state, Fault.MISALIGNED, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE],
                          entry[i], 16, 0, 0)  # fmt: skip
    return 0


@njit(cache=True)
def perform_cp_async(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy F bytes, the last of them zeros where fewer are to be read."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@njit(cache=True)
def perform_bulk_load(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from global to shared memory and complete_tx."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@njit(cache=True)
def perform_bulk_shared(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from shared memory to that of another CTA of the cluster and complete_tx."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@njit(cache=True)
def perform_bulk_store(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from shared to global memory."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@njit(cache=True)
def perform_bulk_reduce(state, r, entry):  # type: ignore[no-untyped-def]
    """Combine shared memory with global memory, element by element."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)
