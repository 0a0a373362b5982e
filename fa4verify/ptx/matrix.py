"""ldmatrix and stmatrix: 8 x 8 matrices of 16 bits between shared memory and the fragments of a warp.

Contract: both act at once and return 0 or a fault. Lane 8 j + i holds the address of row i of matrix j (16 bytes). In a
fragment, lane l holds elements 2 (l & 3) and the one after it of row l >> 2; with .trans, of column l >> 2.
Numbers: PTX ISA, "ldmatrix", "stmatrix" (shape m8n8, b16).
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.bounds import shared_at
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import Column
from fa4verify.ptx.raw import copy_bytes, load_u16, load_u32, load_u64, scratch, store_u16, store_u32, store_u64
from fa4verify.ptx.registers import slot_at, value32
from fa4verify.ptx.state import Fault

_ROW = 16  # bytes
_ALL = 0xFFFFFFFF


@inner
def _row(state, r, w, row, lane):  # type: ignore[no-untyped-def]
    """Where the row lies that a lane names, or 0 after a fault."""
    address = value32(state, r, w, state.code[row, Column.A], lane) + state.code[row, Column.IMM]
    if address & (_ROW - 1):
        raise_(state, Fault.MISALIGNED, r, w, row, lane, address, _ROW, 0, 0)
        return np.int64(0)
    at = shared_at(state, r, address, _ROW)
    if at == 0:
        raise_(state, Fault.SHARED_BOUNDS, r, w, row, lane, address, _ROW, 0, 0)
    return at


@inner
def _load(at, line, transposed, slot):  # type: ignore[no-untyped-def]
    """Spread one row of a matrix over the lanes."""
    for i in range(4):
        if transposed:  # element 2 i and 2 i + 1 belong to lanes 4 (2 i) + line / 2 ..., half line & 1
            for j in range(2):
                lane = 4 * (2 * i + j) + (line >> 1)
                store_u16(slot + 4 * lane + 2 * (line & 1), load_u16(at + 2 * (2 * i + j)))
        else:
            store_u32(slot + 4 * (4 * line + i), load_u32(at + 4 * i))


@inner
def ldmatrix(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Load 1, 2 or 4 matrices; `mask` is the active lanes, which must be all."""
    if mask != _ALL:
        return raise_(state, Fault.DIVERGENT, r, w, row, -1, mask, 0, 0, 0)
    code = state.code[row]
    rows = scratch()  # read before any register is written: the address may be one of them
    for lane in range(8 * code[Column.F]):
        at = _row(state, r, w, row, lane)
        if at == 0:
            return state.fault[0]
        copy_bytes(rows + _ROW * lane, at, _ROW)
    for lane in range(8 * code[Column.F]):
        slot = slot_at(state, r, w, state.pool[code[Column.E] + (lane >> 3)])
        _load(rows + _ROW * lane, lane & 7, code[Column.B] == 1, slot)
    return 0


@inner
def stmatrix(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Store 1, 2 or 4 matrices; `mask` is the active lanes, which must be all."""
    if mask != _ALL:
        return raise_(state, Fault.DIVERGENT, r, w, row, -1, mask, 0, 0, 0)
    code = state.code[row]
    transposed = code[Column.B] == 1
    for lane in range(8 * code[Column.F]):
        at = _row(state, r, w, row, lane)
        if at == 0:
            return state.fault[0]
        slot = slot_at(state, r, w, state.pool[code[Column.E] + (lane >> 3)])
        line = lane & 7
        if transposed:
            for i in range(8):
                store_u16(at + 2 * i, load_u16(slot + 4 * (4 * i + (line >> 1)) + 2 * (line & 1)))
        else:
            store_u64(at, load_u64(slot + 16 * line))
            store_u64(at + 8, load_u64(slot + 16 * line + 8))
    return 0
