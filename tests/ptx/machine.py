"""A State made by hand, for tests of one unit: no program, no scheduler."""

from __future__ import annotations

import numpy as np
from numba import njit

from fa4verify.ptx.handle import machine_at, pack
from fa4verify.ptx.linkage import unit_addresses
from fa4verify.ptx.operations import COLUMNS, PENDING, Column, MmaDtype, Pending
from fa4verify.ptx.stage import new_stage, tensor_core_steps
from fa4verify.ptx.state import FAULT_FIELDS, POISON_BYTE, POISON_REGISTER, Cta, State, Warp


def aligned(shape, dtype, alignment=1024):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size].view(dtype).reshape(shape)


def machine(
    *,
    target="sm_90a",
    ctas=1,
    warps=4,
    slots=256,
    predicates=8,
    shared=1 << 16,
    tensor=False,
    memory=(),
    parameters=b"",
):
    """One cluster of `ctas` CTAs; memory: arrays that the kernel may touch."""
    registers = aligned((ctas, warps, slots, 32), np.uint32)
    registers[...] = POISON_REGISTER
    window = aligned((ctas, shared), np.uint8)
    window[...] = POISON_BYTE
    held = aligned(max(len(parameters), 1), np.uint8, 64)
    held[: len(parameters)] = np.frombuffer(parameters, np.uint8)
    table = np.zeros((ctas, len(Cta)), np.int64)
    table[:, Cta.LIVE], table[:, Cta.SIZE] = 1, ctas
    ranges = np.array([(a.ctypes.data, a.nbytes) for a in memory], np.int64).reshape(-1, 2)
    return State(
        code=np.full((8, COLUMNS), -1, np.int64),
        pool=np.arange(512, dtype=np.int32),
        registers=registers,
        predicates=np.zeros((ctas, warps, predicates), np.uint32),
        rows=np.zeros((ctas, warps, 32), np.int64),
        warps=np.zeros((ctas, warps, len(Warp)), np.int64),
        ctas=table,
        shared=window,
        local=np.zeros((ctas, warps * 32, 1), np.uint8),
        tensor=np.full((ctas, 128, 512) if tensor else (1, 1, 1), 0xFFFFFFFF, np.uint32),
        barriers=np.zeros((ctas, 16, 3), np.int64),
        pending=np.zeros((ctas, 4, PENDING), np.int64),
        parameters=held,
        memory=ranges,
        fault=np.zeros(FAULT_FIELDS, np.int64),
        counts=np.zeros(32, np.int64),
        knobs=np.zeros(16, np.int64),
        groups=np.zeros((ctas, warps, 64), np.int64),
        steps=tensor_core_steps(target),
        stage=new_stage(),
        units=unit_addresses(),
    )


def set_code(state, row, **columns):
    """Fill a row of code; columns that are not named are -1, IMM 0."""
    state.code[row] = -1
    state.code[row, Column.IMM] = 0
    for name, value in columns.items():
        state.code[row, Column[name]] = value


def entry(row=0, warp=0, lane=0):
    fields = np.zeros(PENDING, np.int64)
    fields[Pending.ROW], fields[Pending.WARP], fields[Pending.LANE] = row, warp, lane
    return fields


def set64(state, r, w, slot, values):
    """Write a 64-bit value, or one a lane, to two slots."""
    state.registers[r, w, slot : slot + 2].reshape(-1).view(np.uint64)[...] = values


FORMAT_NAME = {MmaDtype.BF16: "bf16", MmaDtype.F16: "fp16", MmaDtype.E4M3: "e4m3", MmaDtype.E5M2: "e5m2"}


def caller(function):
    """Make a function of the machine callable from Python: (state, ...).

    The package's inner functions have no wrapper for Python: called directly they crash the process.
    """
    run = njit(lambda address, *rest: function(machine_at(address), *rest))
    return lambda state, *passed: run(pack(state).ctypes.data, *passed)
