"""Loads, stores and atomics of a warp, lane by lane, every access checked.

Contract: `step` (loads, stores) and `atomic` run one row for the lanes of a mask and return 0 or a fault. An address
must lie inside one window (shared memory of the cluster, the caller's ranges, the parameters, the thread's own local
memory) and be a multiple of the bytes that a lane moves, as the hardware demands.
A store of several lanes to one address leaves the highest lane's value; atomics run in lane order.
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.atomics import fence, update
from fa4verify.ptx.bounds import global_at, parameter_at, shared_at
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.handle import machine_at
from fa4verify.ptx.inner import inner
from fa4verify.ptx.lane_ir import LANES, SLOT_BYTES
from fa4verify.ptx.operations import LOCAL_BASE, SIGNED, Column, Op
from fa4verify.ptx.raw import (
    address_of,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from fa4verify.ptx.state import Fault

_D, _A, _B, _C, _E, _F, _G, _IMM = (
    int(x) for x in (Column.D, Column.A, Column.B, Column.C, Column.E, Column.F, Column.G, Column.IMM)
)
_PARAMETER, _LOAD_GLOBAL, _STORE_GLOBAL = int(Op.LOAD_PARAMETER), int(Op.LOAD_GLOBAL), int(Op.STORE_GLOBAL)
_LOAD_SHARED, _STORE_SHARED = int(Op.LOAD_SHARED), int(Op.STORE_SHARED)
_LOAD_LOCAL, _STORE_LOCAL = int(Op.LOAD_LOCAL), int(Op.STORE_LOCAL)
_ATOMIC_SHARED = int(Op.ATOMIC_SHARED)
_SHARED_BOUNDS, _GLOBAL_BOUNDS = int(Fault.SHARED_BOUNDS), int(Fault.GLOBAL_BOUNDS)
_PARAMETER_BOUNDS, _LOCAL_BOUNDS = int(Fault.PARAMETER_BOUNDS), int(Fault.LOCAL_BOUNDS)
_MISALIGNED = int(Fault.MISALIGNED)


@inner
def _local_at(state, r, thread, address, size):  # type: ignore[no-untyped-def]
    """Address of `size` bytes of a thread's local memory."""
    offset = address - LOCAL_BASE
    if offset < 0 or offset + size > state.local.shape[2]:
        return np.int64(0)
    return address_of(state.local[r, thread]) + offset


@inner
def _locate(state, r, w, row, lane, operation, address, size):  # type: ignore[no-untyped-def]
    """Where an access of one lane lies in this process, or 0 after a fault."""
    if address & (size - 1):
        raise_(state, _MISALIGNED, r, w, row, lane, address, size, 0, 0)
        return np.int64(0)
    if operation in (_LOAD_SHARED, _STORE_SHARED, _ATOMIC_SHARED):
        at = shared_at(state, r, address, size)
        kind = _SHARED_BOUNDS
    elif operation in (_LOAD_LOCAL, _STORE_LOCAL):
        at = _local_at(state, r, LANES * w + lane, address, size)
        kind = _LOCAL_BOUNDS
    elif operation == _PARAMETER:
        at = parameter_at(state, address, size)
        kind = _PARAMETER_BOUNDS
    else:
        at = global_at(state, address, size)
        kind = _GLOBAL_BOUNDS
    if at == 0:
        raise_(state, kind, r, w, row, lane, address, size, 0, 0)
    return at


@inner
def _address(operation, base, lane):  # type: ignore[no-untyped-def]
    """Read a lane's address register: 32 bits for shared memory, 64 elsewhere."""
    if operation in (_LOAD_SHARED, _STORE_SHARED, _ATOMIC_SHARED):
        return np.int64(load_u32(base + 4 * lane))
    return load_i64(base + 8 * lane)


@inner
def _read(at, size, register, slot, lane):  # type: ignore[no-untyped-def]
    """Move one element from memory to a register of `register & 255` bytes."""
    if size == 4 and register & 255 <= 4:
        store_u32(slot + 4 * lane, load_u32(at))
        return
    if size == 8:
        store_u64(slot + 8 * lane, load_u64(at))
        return
    if size == 1:
        value = np.int64(np.int8(load_u8(at))) if register & SIGNED else np.int64(load_u8(at))
    elif size == 2:
        value = np.int64(np.int16(load_u16(at))) if register & SIGNED else np.int64(load_u16(at))
    else:
        value = np.int64(np.int32(load_u32(at))) if register & SIGNED else np.int64(load_u32(at))
    width = register & 255
    if width == 8:
        store_u64(slot + 8 * lane, value)
    elif width == 4:
        store_u32(slot + 4 * lane, value)
    else:
        store_u32(slot + 4 * lane, value & ((1 << (8 * width)) - 1))


@inner
def _write(at, size, register, slot, lane):  # type: ignore[no-untyped-def]
    """Move the low bytes of a register to memory."""
    value = load_u64(slot + 8 * lane) if register & 255 == 8 else np.uint64(load_u32(slot + 4 * lane))
    if size == 4:
        store_u32(at, value)
    elif size == 8:
        store_u64(at, value)
    elif size == 2:
        store_u16(at, value)
    else:
        store_u8(at, value)


@inner
def _transfer(state, r, w, row, mask, operation):  # type: ignore[no-untyped-def]
    """Load or store a vector of elements for each lane."""
    code = state.code[row]
    registers = address_of(state.registers[r, w])
    base, offset = registers + SLOT_BYTES * code[_A], code[_IMM]
    count, size, register, first = code[_B], code[_F], code[_C], code[_E]
    loads = operation in (_LOAD_SHARED, _LOAD_GLOBAL, _LOAD_LOCAL, _PARAMETER)
    whole = count * size
    for lane in range(LANES):
        if not (mask >> lane) & 1:
            continue
        at = _locate(state, r, w, row, lane, operation, _address(operation, base, lane) + offset, whole)
        if at == 0:
            return state.fault[0]
        for i in range(count):
            slot = registers + SLOT_BYTES * np.int64(state.pool[first + i])
            if loads:
                _read(at + size * i, size, register, slot, lane)
            else:
                _write(at + size * i, size, register, slot, lane)
    return np.int64(0)


@inner
def _load_parameter(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Load from a fixed place of the parameters: the same for every lane, alignment known to the reader."""
    code = state.code[row]
    registers = address_of(state.registers[r, w])
    count, size, register, first = code[_B], code[_F], code[_C], code[_E]
    if code[_IMM] < 0 or code[_IMM] + count * size > state.parameters.size:
        return raise_(state, _PARAMETER_BOUNDS, r, w, row, -1, code[_IMM], count * size, 0, 0)
    at = address_of(state.parameters) + code[_IMM]
    for i in range(count):
        slot = registers + SLOT_BYTES * np.int64(state.pool[first + i])
        for lane in range(LANES):
            if (mask >> lane) & 1:
                _read(at + size * i, size, register, slot, lane)
    return np.int64(0)


@by_address
def step(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Run a load or store for the lanes of a mask."""
    state = machine_at(address)
    operation = state.code[row, 0]
    if operation == _PARAMETER and state.code[row, _A] < 0:
        return _load_parameter(state, r, w, row, mask)
    if operation == _STORE_GLOBAL:
        fence()
    fault = _transfer(state, r, w, row, mask, operation)
    if operation == _LOAD_GLOBAL:
        fence()
    return fault


@by_address
def atomic(address, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Update memory lane by lane and, where asked for, return what was there."""
    state = machine_at(address)
    code = state.code[row]
    operation = code[0]
    registers = address_of(state.registers[r, w])
    base, size = registers + SLOT_BYTES * code[_A], code[_G]
    value, second, result = (registers + SLOT_BYTES * code[_B], registers + SLOT_BYTES * code[_C],
                             registers + SLOT_BYTES * code[_D])  # fmt: skip
    for lane in range(LANES):
        if not (mask >> lane) & 1:
            continue
        at = _locate(state, r, w, row, lane, operation, _address(operation, base, lane) + code[_IMM], size)
        if at == 0:
            return state.fault[0]
        if size == 8:
            operand = load_i64(value + 8 * lane)
            replacement = load_i64(second + 8 * lane) if code[_C] >= 0 else np.int64(0)
        else:
            operand = np.int64(load_u32(value + 4 * lane))
            replacement = np.int64(load_u32(second + 4 * lane)) if code[_C] >= 0 else np.int64(0)
        old = update(code[_F], at, operand, replacement)
        if code[_D] >= 0:
            if size == 8:
                store_u64(result + 8 * lane, old)
            else:
                store_u32(result + 4 * lane, old)
    return np.int64(0)
