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

import numpy as np

from fa4verify.ptx.atomics import update
from fa4verify.ptx.bounds import global_at, shared_at
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.mbarrier import complete_tx
from fa4verify.ptx.operations import Column, Pending
from fa4verify.ptx.raw import copy_bytes, load_i64, load_u32, store_u8
from fa4verify.ptx.registers import value32, value64
from fa4verify.ptx.state import Fault


@inner
def issue_cp_async(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and, where the instruction has one, the bytes to read."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value64(state, r, w, code[Column.A], lane) + code[Column.C]
    entry[Pending.X2] = code[Column.F]
    if code[Column.B] >= 0:
        entry[Pending.X2] = value32(state, r, w, code[Column.B], lane)
    return 0


@inner
def issue_bulk_load(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and the size."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value64(state, r, w, code[Column.A], lane)
    entry[Pending.X2] = value32(state, r, w, code[Column.C], lane) + code[Column.G]
    entry[Pending.X3] = value32(state, r, w, code[Column.B], lane)
    return 0


@inner
def issue_bulk_shared(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and the size."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value32(state, r, w, code[Column.A], lane)
    entry[Pending.X2] = value32(state, r, w, code[Column.C], lane) + code[Column.G]
    entry[Pending.X3] = value32(state, r, w, code[Column.B], lane)
    return 0


@inner
def issue_bulk_store(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the addresses and the size; also of BULK_REDUCE."""
    code = state.code[row]
    entry[Pending.X0] = value64(state, r, w, code[Column.D], lane) + code[Column.IMM]
    entry[Pending.X1] = value32(state, r, w, code[Column.A], lane)
    entry[Pending.X3] = value32(state, r, w, code[Column.B], lane)
    return 0


@inner
def _raise(state, kind, r, entry, address, size):  # type: ignore[no-untyped-def]
    return raise_(
        state, np.int64(kind), r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE], address, size, 0, 0
    )


@inner
def perform_cp_async(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy F bytes, the last of them zeros where fewer are to be read."""
    size = state.code[entry[Pending.ROW], Column.F]
    read = min(entry[Pending.X2], size)
    if (entry[Pending.X0] | entry[Pending.X1]) & (size - 1):
        return _raise(state, Fault.MISALIGNED, r, entry, entry[Pending.X0] | entry[Pending.X1], size)
    to = shared_at(state, r, entry[Pending.X0], size)
    if to == 0:
        return _raise(state, Fault.SHARED_BOUNDS, r, entry, entry[Pending.X0], size)
    if read > 0:
        source = global_at(state, entry[Pending.X1], read)
        if source == 0:
            return _raise(state, Fault.GLOBAL_BOUNDS, r, entry, entry[Pending.X1], read)
        copy_bytes(to, source, read)
    for i in range(read, size):
        store_u8(to + i, 0)
    return 0


@inner
def _ends(state, r, entry, shared, other):  # type: ignore[no-untyped-def]
    """Check a bulk copy: fields with its address in shared memory and in global memory; the fault or 0."""
    size = entry[Pending.X3]
    if (entry[shared] | entry[other] | size) & 15:
        return _raise(state, Fault.MISALIGNED, r, entry, entry[shared] | entry[other] | size, 16)
    if shared_at(state, r, entry[shared], size) == 0:
        return _raise(state, Fault.SHARED_BOUNDS, r, entry, entry[shared], size)
    if global_at(state, entry[other], size) == 0:
        return _raise(state, Fault.GLOBAL_BOUNDS, r, entry, entry[other], size)
    return 0


@inner
def perform_bulk_load(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from global to shared memory and complete_tx."""
    size = entry[Pending.X3]
    fault = _ends(state, r, entry, Pending.X0, Pending.X1)
    if fault != 0:
        return fault
    copy_bytes(shared_at(state, r, entry[Pending.X0], size), entry[Pending.X1], size)
    return complete_tx(state, r, entry[Pending.X2], size)


@inner
def perform_bulk_shared(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from shared memory to that of another CTA of the cluster and complete_tx."""
    size = entry[Pending.X3]
    if (entry[Pending.X0] | entry[Pending.X1] | size) & 15:
        return _raise(state, Fault.MISALIGNED, r, entry, entry[Pending.X0] | entry[Pending.X1] | size, 16)
    to, source = shared_at(state, r, entry[Pending.X0], size), shared_at(state, r, entry[Pending.X1], size)
    if to == 0 or source == 0:
        return _raise(state, Fault.SHARED_BOUNDS, r, entry, entry[Pending.X0 if to == 0 else Pending.X1], size)
    copy_bytes(to, source, size)
    return complete_tx(state, r, entry[Pending.X2], size)


@inner
def perform_bulk_store(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from shared to global memory."""
    size = entry[Pending.X3]
    fault = _ends(state, r, entry, Pending.X1, Pending.X0)
    if fault != 0:
        return fault
    copy_bytes(entry[Pending.X0], shared_at(state, r, entry[Pending.X1], size), size)
    return 0


@inner
def perform_bulk_reduce(state, r, entry):  # type: ignore[no-untyped-def]
    """Combine shared memory with global memory, element by element."""
    size = entry[Pending.X3]
    operation, element = state.code[entry[Pending.ROW], Column.F], state.code[entry[Pending.ROW], Column.G]
    if element != 4 and element != 8:
        return _raise(state, Fault.UNKNOWN_OPERATION, r, entry, operation, element)
    fault = _ends(state, r, entry, Pending.X1, Pending.X0)
    if fault != 0:
        return fault
    source = shared_at(state, r, entry[Pending.X1], size)
    for i in range(0, size, element):
        value = np.int64(load_u32(source + i)) if element == 4 else load_i64(source + i)
        update(operation, entry[Pending.X0] + i, value, 0)
    return 0
