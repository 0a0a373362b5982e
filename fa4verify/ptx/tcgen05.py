"""tcgen05 but for its MMA: allocation of tensor memory, loads and stores, commit.

Contract: `issue_*` reads registers and fills X0 ... of an entry; `perform_*` has the effect, later. All return 0 or a
fault. The queue fills the other fields of the entry; it keeps TC_MMA, TC_CP and TC_COMMIT of a CTA in order. X0 ...:

    TC_CP      X0 TMEM address, X1 descriptor
    TC_COMMIT  X0 mbarrier (shared::cluster), X1 multicast mask or -1
    TC_LD      X0 TMEM address; registers are written when performed
    TC_ST      X0 TMEM address; registers are read when performed: perform it at once, the program may overwrite them

A TMEM address is lane << 16 | column. A warp reaches the 32 lanes of its number modulo 4.
Of the shapes of loads and stores only 32x32b is known here, the only one in FA4's kernels; tcgen05.cp does not occur.
"""

from __future__ import annotations

import numpy as np

from fa4verify.ptx.bounds import shared_at
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.mbarrier import arrive
from fa4verify.ptx.operations import RANK_SHIFT, Column, Pending, TcShape
from fa4verify.ptx.raw import store_u32
from fa4verify.ptx.registers import value32, value64
from fa4verify.ptx.state import Cta, Fault

_ALL = 0xFFFFFFFF
_ONES = np.uint32(0xFFFFFFFF)  # TMEM that nobody wrote: NaN
_OFFSET = (1 << RANK_SHIFT) - 1
_INFINITY, _NAN = 0x7F800000, 0x7FFFFFFF


@inner
def issue_tc_cp(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the address and the descriptor, of one lane."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.A], lane)
    entry[Pending.X1] = value64(state, r, w, code[Column.B], lane)
    return 0


@inner
def issue_tc_commit(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the mbarrier's address and the mask, of one lane."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.A], lane) + code[Column.IMM]
    entry[Pending.X1] = -1
    if code[Column.B] >= 0:
        entry[Pending.X1] = value32(state, r, w, code[Column.B], lane) & 0xFFFF
    return 0


@inner
def issue_tc_ld(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read the address, the same in every lane; also of TC_ST."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.A], lane) + code[Column.IMM]
    return 0


@inner
def _outside(state, r, entry, columns):  # type: ignore[no-untyped-def]
    """Fault of an access that is not to the warp's own 32 lanes, or to columns that are not allocated; else 0."""
    w, address = entry[Pending.WARP], entry[Pending.X0]
    if (address >> 16) != 32 * (w & 3) or (address & 0xFFFF) + columns > state.ctas[r, Cta.TMEM_COLUMNS]:
        return raise_(
            state, Fault.TMEM_BOUNDS, r, w, entry[Pending.ROW], -1, address, columns, 32 * (w & 3),
            state.ctas[r, Cta.TMEM_COLUMNS],
        )  # fmt: skip
    return 0


@inner
def _better(x, y, kind):  # type: ignore[no-untyped-def]
    """max.f32 or min.f32 of two numbers in bits, by TcReduction: a NaN loses, or wins with .NaN; -0 is below +0."""
    if kind & 2:
        x, y = x & 0x7FFFFFFF, y & 0x7FFFFFFF
    x_is_nan, y_is_nan = (x & 0x7FFFFFFF) > _INFINITY, (y & 0x7FFFFFFF) > _INFINITY
    if x_is_nan or y_is_nan:
        if kind & 4 or (x_is_nan and y_is_nan):
            return np.int64(_NAN)
        return y if x_is_nan else x
    x_key = x if x < 0x80000000 else 0x7FFFFFFF - x  # bits in the order of the numbers
    y_key = y if y < 0x80000000 else 0x7FFFFFFF - y
    return x if (x_key > y_key) == (kind & 1 == 0) else y


@inner
def perform_tc_ld(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy TMEM to registers; with .red also the largest or smallest of each lane's."""
    w, row = entry[Pending.WARP], entry[Pending.ROW]
    code = state.code[row]
    if code[Column.G] != TcShape.S32X32B:
        return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, code[Column.G], 0, 0, 0)
    count = code[Column.F]
    fault = _outside(state, r, entry, count)
    if fault != 0:
        return fault
    first, column = entry[Pending.X0] >> 16, entry[Pending.X0] & 0xFFFF
    for lane in range(32):  # a lane's columns follow each other, and 32 lanes of TMEM share two sets of the L1 cache
        for i in range(count):
            state.registers[r, w, state.pool[code[Column.E] + i], lane] = state.tensor[r, first + lane, column + i]
    if code[Column.D] >= 0:
        for lane in range(32):
            found = np.int64(state.tensor[r, first + lane, column])
            for i in range(count):
                found = _better(found, np.int64(state.tensor[r, first + lane, column + i]), code[Column.B])
            state.registers[r, w, code[Column.D], lane] = found
    return 0


@inner
def perform_tc_st(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy registers to TMEM."""
    w, row = entry[Pending.WARP], entry[Pending.ROW]
    code = state.code[row]
    if code[Column.G] != TcShape.S32X32B:
        return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, code[Column.G], 0, 0, 0)
    fault = _outside(state, r, entry, code[Column.F])
    if fault != 0:
        return fault
    first, column = entry[Pending.X0] >> 16, entry[Pending.X0] & 0xFFFF
    for lane in range(32):
        for i in range(code[Column.F]):
            state.tensor[r, first + lane, column + i] = state.registers[r, w, state.pool[code[Column.E] + i], lane]
    return 0


@inner
def perform_tc_cp(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from shared memory to TMEM: no shape of it occurs in FA4, none is known here."""
    return raise_(
        state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE],
        state.code[entry[Pending.ROW], Column.G], 0, 0, 0,
    )  # fmt: skip


@inner
def perform_tc_commit(state, r, entry):  # type: ignore[no-untyped-def]
    """Arrive once at the mbarrier, or at the one of the same address in every CTA of the mask."""
    mask, size = entry[Pending.X1], state.ctas[r, Cta.SIZE]
    if mask < 0:
        return arrive(state, r, entry[Pending.X0], 1)
    if mask >> size:
        return raise_(
            state, Fault.SHARED_BOUNDS, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE], mask, size,
            0, 0,
        )  # fmt: skip
    for rank in range(size):
        if (mask >> rank) & 1:
            fault = arrive(state, r, (entry[Pending.X0] & _OFFSET) | (rank << RANK_SHIFT), 1)
            if fault != 0:
                return fault
    return 0


@inner
def tc_alloc(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Allocate columns, write the address to shared memory; fault where none are free (hardware would wait).

    In a pair of CTAs a warp of each allocates; here each for its own.
    """
    code = state.code[row]
    columns, taken = value32(state, r, w, code[Column.B], 0), state.ctas[r, Cta.TMEM_COLUMNS]
    if mask != _ALL:
        return raise_(state, Fault.DIVERGENT, r, w, row, -1, mask, 0, 0, 0)
    if columns < 32 or columns & (columns - 1) or taken + columns > state.tensor.shape[2]:
        return raise_(state, Fault.TMEM_ALLOCATION, r, w, row, -1, columns, taken, 0, 0)
    address = value32(state, r, w, code[Column.A], 0) + code[Column.IMM]
    to = shared_at(state, r, address, 4)
    if to == 0:
        return raise_(state, Fault.SHARED_BOUNDS, r, w, row, -1, address, 4, 0, 0)
    store_u32(to, taken)
    state.ctas[r, Cta.TMEM_COLUMNS] = taken + columns
    state.tensor[r, :, taken : taken + columns] = _ONES
    return 0


@inner
def tc_dealloc(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Free columns: the last that were allocated (others are refused, though hardware takes any order)."""
    code = state.code[row]
    address, columns = value32(state, r, w, code[Column.A], 0), value32(state, r, w, code[Column.B], 0)
    taken = state.ctas[r, Cta.TMEM_COLUMNS]
    if mask != _ALL:
        return raise_(state, Fault.DIVERGENT, r, w, row, -1, mask, 0, 0, 0)
    if columns < 32 or address + columns != taken:
        return raise_(state, Fault.TMEM_ALLOCATION, r, w, row, -1, columns, taken, address, 0)
    state.ctas[r, Cta.TMEM_COLUMNS] = address
    return 0
