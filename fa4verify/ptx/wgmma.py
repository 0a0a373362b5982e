"""wgmma.mma_async: the matrix multiply of a warpgroup, executed by each of its four warps for 16 rows.

Contract: `issue_wgmma` reads the descriptors and scale-d of a warp; `perform_wgmma` reads shared memory, the registers
of A and the accumulators, and writes the accumulators, so that the queue may run it as late as wgmma.wait_group. Both
return 0 or a fault. X0 descriptor of A (0 where A is in registers), X1 descriptor of B, X2 scale-d (0 or 1).
"""

from __future__ import annotations

from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.ptx.descriptors import wgmma_matrix
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import (
    WGMMA_NEGATE_A,
    WGMMA_NEGATE_B,
    WGMMA_TRANSPOSE_A,
    WGMMA_TRANSPOSE_B,
    Column,
    Pending,
)
from fa4verify.ptx.product import (
    clear_accumulators,
    clear_last_panel,
    code_bytes,
    load_accumulators,
    negate_rows,
    stage_fragments,
    store_accumulators,
)
from fa4verify.ptx.raw import address_of
from fa4verify.ptx.registers import value64
from fa4verify.ptx.stage import LEFT_CODES, RIGHT_WORDS
from fa4verify.ptx.state import Fault
from fa4verify.ptx.units import gather_left, gather_right, multiply, prepare_columns, prepare_rows

_ROWS = 16  # of a warp


@inner
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


@inner
def _product(  # type: ignore[no-untyped-def]
    units, stage, shared, size, registers, pool, w, a, b, accumulate, flags, columns, step
):
    """Do one warp's part; returns -1, -2 or -3 for a descriptor of A or B, or the address outside shared memory.

    registers, pool: addresses of the warp's first slot and of the instruction's pool entries; a: its descriptor, 0 for
    registers.
    """
    dtype = flags & 15
    entries = pool + 2 * columns
    if a == 0:
        stage_fragments(stage, registers, entries)
    else:
        matrix = wgmma_matrix(a)
        if matrix.swizzle < 0:
            return -2
        outside = gather_left(
            units, shared, size, matrix, flags & WGMMA_TRANSPOSE_A != 0, (w & 3) * _ROWS, _ROWS, code_bytes(dtype),
            stage + LEFT_CODES,
        )  # fmt: skip
        if outside >= 0:
            return outside
    if (flags & WGMMA_NEGATE_A != 0) != (flags & WGMMA_NEGATE_B != 0):
        negate_rows(stage, _ROWS, dtype)
    transposed = flags & WGMMA_TRANSPOSE_B != 0
    matrix = wgmma_matrix(b)
    if matrix.swizzle < 0:
        return -3
    clear_last_panel(stage, columns)
    outside = gather_right(units, shared, size, matrix, transposed, 0, columns, code_bytes(dtype), stage + RIGHT_WORDS)
    if outside >= 0:
        return outside
    prepare_rows(units, stage, _ROWS, dtype, step)
    prepare_columns(units, stage, columns, transposed, dtype, step)
    for panel in range((columns + LANES - 1) // LANES):
        full = (panel + 1) * LANES <= columns
        if accumulate:
            load_accumulators(stage, registers, pool + 32 * panel, full)
        else:
            clear_accumulators(stage, _ROWS)
        multiply(units, stage, panel, _ROWS, dtype, step)
        store_accumulators(stage, registers, pool + 32 * panel, full)
    return -1


@inner
def perform_wgmma(state, r, entry):  # type: ignore[no-untyped-def]
    """D = A . B + (D where scale-d is set), for the 16 rows of the warp."""
    w, row = entry[Pending.WARP], entry[Pending.ROW]
    flags, columns = state.code[row, Column.IMM], state.code[row, Column.F]
    if flags & 15 != (flags >> 4) & 15 or state.steps[flags & 15, 0] == 0:
        return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, flags & 15, (flags >> 4) & 15, 0, 0)
    outside = _product(
        state.units, address_of(state.stage), address_of(state.shared[r]), state.shared.shape[1],
        address_of(state.registers[r, w]),
        address_of(state.pool) + 4 * state.code[row, Column.E], w, entry[Pending.X0], entry[Pending.X1],
        entry[Pending.X2] != 0, flags, columns,
        address_of(state.steps[flags & 15]),
    )  # fmt: skip
    if outside >= 0:
        return raise_(state, Fault.SHARED_BOUNDS, r, w, row, -1, outside, 16, 0, 0)
    if outside < -1:
        descriptor = entry[Pending.X0] if outside == -2 else entry[Pending.X1]
        return raise_(state, Fault.DESCRIPTOR, r, w, row, -1, descriptor, 0, 0, 0)
    return 0
