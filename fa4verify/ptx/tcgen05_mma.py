"""tcgen05.mma: the matrix multiply of one CTA or a pair, with accumulators in tensor memory.

Contract: `issue_tc_mma` reads registers and fills X0 ...; `perform_tc_mma` has the effect, later. Both return 0 or a
fault. X0 D's TMEM address, X1 A's descriptor or TMEM address, X2 B's descriptor, X3 instruction descriptor, X4 1 to
accumulate.
Where D lies (N columns from the address on): one CTA, M = 128: row i in lane i; M = 64: row i in lane 32 (i / 16) + i %
16. A pair, M = 256: each CTA its 128 rows; M = 128: each CTA its 64 rows, columns up to N / 2 in lanes 0-63, the others
in lanes 64-127 of the same columns. A's rows and half of B's columns come from each CTA of the pair, at the same
addresses. A in TMEM: row i in lane i, two 16-bit codes a column; not for M = 64 or a pair's M = 128.
Numbers: PTX ISA, "tcgen05 instruction descriptor", "Data path layout organization" (A, B, D, F); that a pair's products
are summed as one CTA's (F = 25, 16 products) is an assumption: no public model, no recording.
"""

from __future__ import annotations

from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.ptx.descriptors import tcgen05_matrix
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import TC_A_IN_TMEM, TC_KIND_F8F6F4, TC_KIND_F16, Column, MmaDtype, Pending
from fa4verify.ptx.product import clear_accumulators, clear_last_panel, code_bytes, negate_rows
from fa4verify.ptx.raw import address_of, copy_bytes
from fa4verify.ptx.registers import value32, value64
from fa4verify.ptx.stage import ACCUMULATORS, LEFT_CODES, RIGHT_WORDS, ROW_BYTES
from fa4verify.ptx.state import Cta, Fault
from fa4verify.ptx.units import gather_left, gather_right, multiply, prepare_columns, prepare_rows

_ROW = 4 * LANES  # bytes of a row of accumulators
_LINE = 4 * 512  # bytes of a lane of TMEM
_ZEROS = (
    0xE080006F  # bits of the instruction descriptor: sparsity, saturation, reserved, shift; D's format is bits 4, 5
)
_FORMATS = 16  # D in fp32, as bits 4, 5


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
def _dtype(kind, descriptor):  # type: ignore[no-untyped-def]
    """MmaDtype of both operands, or -1 where this machine does not take the descriptor."""
    a, b = (descriptor >> 7) & 7, (descriptor >> 10) & 7
    if a != b or a > 1 or descriptor & _FIXED != _FP32:
        return -1
    if kind == TC_KIND_F16:
        return 1 - a  # 0 fp16, 1 bf16
    if kind == TC_KIND_F8F6F4:
        return 2 + a  # 0 e4m3, 1 e5m2
    return -1


@inner
def _lane(row, rows, half):  # type: ignore[no-untyped-def]
    """Lane of a row of D in its CTA; half: columns from N / 2 on of a pair's M = 128, else -1 or 0."""
    if rows == 64 and half < 0:
        return 32 * (row >> 4) + (row & 15)
    return row + 64 * max(half, 0)


@inner
def _move_rows(stage, tensor, rows, column, half, load):  # type: ignore[no-untyped-def]
    """Copy a panel's accumulators from TMEM (load) or back; tensor: address of the CTA's."""
    for row in range(rows):
        here = stage + ACCUMULATORS + row * _ROW
        there = tensor + _lane(row, rows, half) * _LINE + 4 * column
        if load:
            copy_bytes(here, there, _ROW)
        else:
            copy_bytes(there, here, _ROW)


@inner
def _multiply_rows(units, stage, tensor, rows, columns, column, pair, accumulate, dtype, step):  # type: ignore[no-untyped-def]
    """D of one CTA, panel by panel; the operands are prepared."""
    for panel in range(columns // LANES):
        half, at = -1, column + panel * LANES
        if pair and rows == 64:
            half = panel * LANES // (columns // 2)
            at -= half * (columns // 2)
        if accumulate:
            _move_rows(stage, tensor, rows, at, half, True)
        else:
            clear_accumulators(stage, rows)
        multiply(units, stage, panel, rows, dtype, step)
        _move_rows(stage, tensor, rows, at, half, False)


@inner
def _wrong(state, kind, r, entry, x0, x1):  # type: ignore[no-untyped-def]
    return raise_(state, kind, r, entry[Pending.WARP], entry[Pending.ROW], entry[Pending.LANE], x0, x1, 0, 0)


@inner
def _stage_b(state, r, first, group, entry, columns, dtype):  # type: ignore[no-untyped-def]
    """Gather B, a part from each CTA; fault or 0."""
    matrix = tcgen05_matrix(entry[Pending.X2])
    if matrix.swizzle < 0:
        return _wrong(state, Fault.DESCRIPTOR, r, entry, entry[Pending.X2], 2)
    stage = address_of(state.stage)
    part = columns // group
    clear_last_panel(stage, columns)
    for q in range(group):
        outside = gather_right(
            state.units, address_of(state.shared[first + q]), state.shared.shape[1], matrix,
            (entry[Pending.X3] >> 16) & 1, q * part, part, code_bytes(dtype), stage + RIGHT_WORDS,
        )  # fmt: skip
        if outside >= 0:
            return _wrong(state, Fault.SHARED_BOUNDS, r, entry, outside, 16)
    return 0


@inner
def _stage_a(state, r, cta, entry, rows, dtype):  # type: ignore[no-untyped-def]
    """Gather the rows of A of one CTA; fault or 0."""
    stage, descriptor = address_of(state.stage), entry[Pending.X3]
    if state.code[entry[Pending.ROW], Column.IMM] & TC_A_IN_TMEM:
        column = entry[Pending.X1]
        if rows != 128 or column + ROW_BYTES // 4 > state.ctas[cta, Cta.TMEM_COLUMNS]:
            return _wrong(state, Fault.TMEM_BOUNDS, r, entry, column, ROW_BYTES // 4)
        tensor = address_of(state.tensor[cta]) + 4 * column
        for row in range(rows):
            copy_bytes(stage + LEFT_CODES + row * ROW_BYTES, tensor + row * _LINE, ROW_BYTES)
    else:
        matrix = tcgen05_matrix(entry[Pending.X1])
        if matrix.swizzle < 0:
            return _wrong(state, Fault.DESCRIPTOR, r, entry, entry[Pending.X1], 1)
        outside = gather_left(
            state.units, address_of(state.shared[cta]), state.shared.shape[1], matrix, (descriptor >> 15) & 1, 0, rows,
            code_bytes(dtype), stage + LEFT_CODES,
        )  # fmt: skip
        if outside >= 0:
            return _wrong(state, Fault.SHARED_BOUNDS, r, entry, outside, 16)
    if (descriptor >> 13) & 1 != (descriptor >> 14) & 1:
        negate_rows(stage, rows, dtype)
    return 0


@inner
def perform_tc_mma(state, r, entry):  # type: ignore[no-untyped-def]
    """D = A . B + (D where X4 is set), of one CTA or a pair."""
    code = state.code[entry[Pending.ROW]]
    descriptor, group = entry[Pending.X3], code[Column.F]
    dtype = _dtype(code[Column.IMM] >> 4, descriptor)
    columns, rows = ((descriptor >> 17) & 63) << 3, (((descriptor >> 24) & 31) << 4) // group
    first = r
    if group == 2:  # the even CTA of the pair issues
        rank = r - state.ctas[r, Cta.FIRST]
        if rank & 1 or rank + 1 >= state.ctas[r, Cta.SIZE]:
            return _wrong(state, Fault.DESCRIPTOR, r, entry, rank, group)
    if dtype < 0 or (rows != 64 and rows != 128) or columns == 0 or columns > 256 or columns % (16 * group):
        return _wrong(state, Fault.DESCRIPTOR, r, entry, descriptor, group)
    if state.steps[dtype, 0] == 0 or dtype > MmaDtype.E5M2:
        return _wrong(state, Fault.UNKNOWN_OPERATION, r, entry, dtype, 0)
    column = entry[Pending.X0]
    width = columns // 2 if group == 2 and rows == 64 else columns
    for q in range(group):
        if column + width > state.ctas[first + q, Cta.TMEM_COLUMNS]:  # a lane in the address is too large, too
            return _wrong(state, Fault.TMEM_BOUNDS, r, entry, column, width)
    fault = _stage_b(state, r, first, group, entry, columns, dtype)
    if fault != 0:
        return fault
    stage, step = address_of(state.stage), address_of(state.steps[dtype])
    prepare_columns(state.units, stage, columns, (descriptor >> 16) & 1, dtype, step)
    for q in range(group):
        fault = _stage_a(state, r, first + q, entry, rows, dtype)
        if fault != 0:
            return fault
        prepare_rows(state.units, stage, rows, dtype, step)
        _multiply_rows(
            state.units, stage, address_of(state.tensor[first + q]), rows, columns, column, group == 2,
            entry[Pending.X4] != 0, dtype, step,
        )  # fmt: skip
    return 0
