"""tcgen05: allocation of tensor memory, its loads and stores, copies into it, the MMA on it, commit.

Contract: `issue_*` reads registers and fills X0 ... of an entry; `perform_*` has the effect, later. All return 0 or a
fault. The queue fills the other fields of the entry; it keeps TC_MMA, TC_CP and TC_COMMIT of a CTA in order. X0 ...:

    TC_MMA     X0 D's TMEM address, X1 A's descriptor or TMEM address, X2 B's descriptor, X3 instruction descriptor,
               X4 1 to accumulate
    TC_CP      X0 TMEM address, X1 descriptor
    TC_COMMIT  X0 mbarrier (shared::cluster), X1 multicast mask or -1
    TC_LD      X0 TMEM address; registers are written when performed
    TC_ST      X0 TMEM address; registers are read when performed: perform it at once, the program may overwrite them

A TMEM address is lane << 16 | column.
"""

from __future__ import annotations

from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import TC_A_IN_TMEM, Column, Pending
from fa4verify.ptx.registers import value32, value64
from fa4verify.ptx.state import Fault


@inner
def issue_tc_mma(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read addresses, descriptors and whether to accumulate, of one lane."""
    code = state.code[row]
    entry[Pending.X0] = value32(state, r, w, code[Column.D], lane)
    if code[Column.IMM] & TC_A_IN_TMEM:
        entry[Pending.X1] = value32(state, r, w, code[Column.A], lane) + code[Column.G]
    else:
        entry[Pending.X1] = value64(state, r, w, code[Column.A], lane)
    entry[Pending.X2] = value64(state, r, w, code[Column.B], lane)
    entry[Pending.X3] = value32(state, r, w, code[Column.C], lane)
    entry[Pending.X4] = 0
    if code[Column.E] == -2:
        entry[Pending.X4] = 1
    elif code[Column.E] >= 0:
        entry[Pending.X4] = (state.predicates[r, w, code[Column.E]] >> lane) & 1
    return 0


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
def perform_tc_mma(state, r, entry):  # type: ignore[no-untyped-def]
    """D = A . B + (D where X4 is set), of one CTA or a pair."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@inner
def perform_tc_cp(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy from shared memory to TMEM."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@inner
def perform_tc_commit(state, r, entry):  # type: ignore[no-untyped-def]
    """Arrive once at the mbarrier, or at the one of the same address in every CTA of the mask."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@inner
def perform_tc_ld(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy TMEM to registers."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@inner
def perform_tc_st(state, r, entry):  # type: ignore[no-untyped-def]
    """Copy registers to TMEM."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)


@inner
def tc_alloc(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Allocate columns, write the address to shared memory; fault where none are free (hardware would wait)."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, mask, 0, 0, 0)


@inner
def tc_dealloc(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """Free columns."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, mask, 0, 0, 0)
