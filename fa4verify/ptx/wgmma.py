"""wgmma.mma_async: the matrix multiply of a warpgroup, executed by each of its four warps for 16 rows.

Contract: `issue_wgmma` reads the descriptors and scale-d of a warp; `perform_wgmma` reads shared memory, the registers
of A and the accumulators, and writes the accumulators, so that the queue may run it as late as wgmma.wait_group. Both
return 0 or a fault. X0 descriptor of A (0 where A is in registers), X1 descriptor of B, X2 scale-d (0 or 1).
"""

from __future__ import annotations

from numba import njit

from fa4verify.ptx.fault import raise_
from fa4verify.ptx.operations import Column, Pending
from fa4verify.ptx.registers import value64
from fa4verify.ptx.state import Fault


@njit(cache=True)
def issue_wgmma(state, r, w, row, lane, entry):  # type: ignore[no-untyped-def]
    """Read what the whole warp shares; `lane` is any of its lanes, the caller has checked that none is missing."""
    code = state.code[row]
    entry[Pending.X0] = 0
    if code[Column.A] >= 0:
        entry[Pending.X0] = value64(state, r, w, code[Column.A], lane)
    entry[Pending.X1] = value64(state, r, w, code[Column.B], lane)
    scale = state.predicates[r, w, code[Column.C]]
    if scale != 0 and scale != 0xFFFFFFFF:
        return raise_(state, Fault.DIVERGENT, r, w, row, -1, scale, 0, 0, 0)
    entry[Pending.X2] = scale & 1
    return 0


@njit(cache=True)
def perform_wgmma(state, r, entry):  # type: ignore[no-untyped-def]
    """D = A . B + (D where scale-d is set), for the 16 rows of the warp."""
    return raise_(state, Fault.UNKNOWN_OPERATION, r, entry[Pending.WARP], entry[Pending.ROW], -1, 0, 0, 0, 0)
