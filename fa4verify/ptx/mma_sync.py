"""mma.sync.m16n8kK: the matrix multiply of one warp, all operands in registers.

Contract: `mma_sync` acts at once and returns 0 or a fault. K is 32 bytes of codes: k16 of 16 bits, k32 of 8 bits; fp8
only where the target's mma.sync has a model of its own (sm_89): wgmma's fp8 rounding is not that of mma.sync on sm_90.
Numbers: PTX ISA, "Matrix fragments for mma.m16n8k16" and "m16n8k32"; steps: mma.py (two of k8 on sm_80, one on sm_90
and sm_120).
"""

from __future__ import annotations

from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.ptx.fault import raise_
from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import Column, MmaDtype
from fa4verify.ptx.product import code_bytes, load_accumulators, stage_fragments, store_accumulators
from fa4verify.ptx.raw import address_of, load_i32, load_u32, store_u32
from fa4verify.ptx.stage import RIGHT_WORDS, ROW_BYTES
from fa4verify.ptx.state import Fault
from fa4verify.ptx.units import multiply, prepare_columns, prepare_rows

_ALL = 0xFFFFFFFF
_ROWS, _COLUMNS = 16, 8
_SLOT = 128
_SM89_K_STEP = 16  # of fp8; sm_90's wgmma and sm_100's tcgen05 have 32


@inner
def _product(units, stage, registers, pool, dtype, step):  # type: ignore[no-untyped-def]
    """Do the multiply; registers, pool: addresses of the warp's first slot and of the instruction's pool entries."""
    stage_fragments(stage, registers, pool + 16)
    for i in range(2):  # register i of B: lane l holds word (l & 3) + 4 i of column l >> 2
        slot = registers + _SLOT * load_i32(pool + 32 + 4 * i)
        for lane in range(32):
            to = stage + RIGHT_WORDS + 4 * (((lane & 3) + 4 * i) * LANES + (lane >> 2))
            store_u32(to, load_u32(slot + 4 * lane))
    for word in range(ROW_BYTES // 4):
        for column in range(_COLUMNS, LANES):
            store_u32(stage + RIGHT_WORDS + 4 * (word * LANES + column), 0)
    load_accumulators(stage, registers, pool + 40, False)
    prepare_rows(units, stage, _ROWS, dtype, step)
    prepare_columns(units, stage, _COLUMNS, 0, dtype, step)
    multiply(units, stage, 0, _ROWS, dtype, step)
    store_accumulators(stage, registers, pool, False)


@inner
def mma_sync(state, r, w, row, mask):  # type: ignore[no-untyped-def]
    """D = A . B + C; `mask` is the active lanes, which must be all. Pool: 4 D, 4 A, 2 B, 4 C slots."""
    if mask != _ALL:
        return raise_(state, Fault.DIVERGENT, r, w, row, -1, mask, 0, 0, 0)
    dtype, length = state.code[row, Column.IMM], state.code[row, Column.F]
    k_step = state.steps[dtype, 0]
    known = k_step > 0 and length * code_bytes(dtype) == ROW_BYTES and dtype <= MmaDtype.E5M2
    if not known or (code_bytes(dtype) == 1 and k_step != _SM89_K_STEP):
        return raise_(state, Fault.UNKNOWN_OPERATION, r, w, row, -1, dtype, length, 0, 0)
    _product(
        state.units, address_of(state.stage), address_of(state.registers[r, w]),
        address_of(state.pool) + 4 * state.code[row, Column.E], dtype, address_of(state.steps[dtype]),
    )  # fmt: skip
    return 0
