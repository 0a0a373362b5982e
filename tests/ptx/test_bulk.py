"""Bulk copies and cp.async: bytes where they belong, zeros where they were not read, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fa4verify.ptx import bulk as unit
from fa4verify.ptx import mbarrier
from fa4verify.ptx.operations import Atomic, Pending
from fa4verify.ptx.state import Fault
from tests.ptx.machine import aligned, caller, entry, machine, set64, set_code

change = caller(mbarrier.change)
init = caller(mbarrier.init)
parity_of = caller(mbarrier.parity_of)
issue_bulk_load = caller(unit.issue_bulk_load)
issue_bulk_shared = caller(unit.issue_bulk_shared)
issue_bulk_store = caller(unit.issue_bulk_store)
issue_cp_async = caller(unit.issue_cp_async)
perform_bulk_load = caller(unit.perform_bulk_load)
perform_bulk_reduce = caller(unit.perform_bulk_reduce)
perform_bulk_shared = caller(unit.perform_bulk_shared)
perform_bulk_store = caller(unit.perform_bulk_store)
perform_cp_async = caller(unit.perform_cp_async)

BARRIER, PLACE, SIZE = 64, 2048, 96
D, A, B, C = 0, 2, 4, 5


def tensor(count=256, kind=np.uint8):
    array = aligned(count, kind, 128)
    array[...] = np.random.default_rng(3).integers(0, 200, count)
    return array


@pytest.mark.parametrize(("size", "read"), [(16, 16), (16, 5), (16, 0), (8, 8), (4, 3)])
def test_cp_async_fills_up_with_zeros(size, read):
    source = tensor(64)
    state = machine(slots=8, memory=[source[: 32 + read]])
    set_code(state, 0, D=D, IMM=48, A=A, C=-16, F=size, B=B)
    state.registers[0, 0, D, 7] = PLACE - 48
    state.registers[0, 0, B, 7] = read
    set64(state, 0, 0, A, source.ctypes.data + 48)
    expected = state.shared[0].copy()
    expected[PLACE : PLACE + size] = 0
    expected[PLACE : PLACE + read] = source[32 : 32 + read]
    fields = entry()
    assert issue_cp_async(state, 0, 0, 0, 7, fields) == perform_cp_async(state, 0, fields) == 0
    assert np.array_equal(state.shared[0], expected)
    state.code[0, 4] = -1  # column B: without a number all is read
    issue_cp_async(state, 0, 0, 0, 7, fields)
    assert perform_cp_async(state, 0, fields) == (0 if read == size else Fault.GLOBAL_BOUNDS)


def test_bulk_load_and_store():
    source = tensor()
    state = machine(slots=8, memory=[source])
    set_code(state, 0, D=D, IMM=1024, A=A, B=B, C=C, G=BARRIER)
    state.registers[0, 0, D] = PLACE - 1024
    state.registers[0, 0, B], state.registers[0, 0, C] = SIZE, 0
    set64(state, 0, 0, A, source.ctypes.data + 32)
    assert init(state, 0, BARRIER, 1) == change(state, 0, BARRIER, 1, SIZE, 0) == 0
    fields = entry()
    assert issue_bulk_load(state, 0, 0, 0, 4, fields) == perform_bulk_load(state, 0, fields) == 0
    assert np.array_equal(state.shared[0, PLACE : PLACE + SIZE], source[32 : 32 + SIZE])
    assert (state.shared[0, PLACE + SIZE :] == 0xFF).all()
    assert parity_of(state, 0, BARRIER) == 1

    set_code(state, 1, D=A, IMM=112, A=D, B=B)
    state.registers[0, 0, D] = PLACE
    expected = source.copy()
    expected[144 : 144 + SIZE] = source[32 : 32 + SIZE]
    fields = entry(row=1)
    assert issue_bulk_store(state, 0, 0, 1, 4, fields) == perform_bulk_store(state, 0, fields) == 0
    assert np.array_equal(source, expected)
    fields[Pending.X0] += 32
    assert perform_bulk_store(state, 0, fields) == Fault.GLOBAL_BOUNDS


def test_between_the_ctas_of_a_cluster():
    state = machine(ctas=2, slots=8)
    set_code(state, 0, D=D, IMM=0, A=A, B=B, C=C, G=BARRIER)
    state.registers[1, 0, D] = PLACE  # CTA 1 sends to CTA 0
    state.registers[1, 0, A], state.registers[1, 0, B], state.registers[1, 0, C] = 1 << 24 | 4096, SIZE, 0
    state.shared[1, 4096 : 4096 + SIZE] = np.arange(SIZE)
    assert init(state, 0, BARRIER, 1) == change(state, 0, BARRIER, 1, SIZE, 0) == 0
    fields = entry()
    assert issue_bulk_shared(state, 1, 0, 0, 0, fields) == perform_bulk_shared(state, 1, fields) == 0
    assert np.array_equal(state.shared[0, PLACE : PLACE + SIZE], np.arange(SIZE))
    assert parity_of(state, 0, BARRIER) == 1
    fields[Pending.X0] |= 2 << 24
    assert perform_bulk_shared(state, 1, fields) == Fault.SHARED_BOUNDS


@pytest.mark.parametrize(
    ("operation", "kind", "combine"),
    [
        (Atomic.ADD_F32, np.float32, np.add),
        (Atomic.ADD_U32, np.uint32, np.add),
        (Atomic.MAX_S32, np.int32, np.maximum),
        (Atomic.ADD_U64, np.uint64, np.add),
        (Atomic.ADD_F64, np.float64, np.add),
    ],
)
def test_bulk_reduce(operation, kind, combine):
    target = tensor(24, kind)
    state = machine(slots=8, memory=[target])
    state.shared[0, PLACE : PLACE + 256].view(kind)[:] = np.random.default_rng(5).standard_normal(256 // target.itemsize) * 99 + 500  # fmt: skip # noqa: E501
    set_code(state, 0, D=A, IMM=0, A=D, B=B, F=operation, G=target.itemsize)
    state.registers[0, 0, D], state.registers[0, 0, B] = PLACE, 16 * target.itemsize
    set64(state, 0, 0, A, target.ctypes.data + 16)
    expected = target.copy()
    first = 16 // target.itemsize
    part = slice(first, first + 16)
    expected[part] = combine(expected[part], state.shared[0, PLACE : PLACE + 16 * target.itemsize].view(kind))
    fields = entry()
    assert issue_bulk_store(state, 0, 0, 0, 4, fields) == perform_bulk_reduce(state, 0, fields) == 0
    assert np.array_equal(target, expected)


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        (Pending.X0, PLACE + 8, Fault.MISALIGNED),
        (Pending.X3, 40, Fault.MISALIGNED),
        (Pending.X0, 65536 - 32, Fault.SHARED_BOUNDS),
        (Pending.X0, 1 << 24, Fault.SHARED_BOUNDS),
        (Pending.X3, 512, Fault.GLOBAL_BOUNDS),
    ],
)
def test_refused(field, value, kind):
    source = tensor()
    state = machine(slots=8, memory=[source])
    init(state, 0, BARRIER, 1)
    fields = entry()
    fields[Pending.X0], fields[Pending.X1], fields[Pending.X2] = PLACE, source.ctypes.data, BARRIER
    fields[Pending.X3] = SIZE
    fields[field] = value
    assert perform_bulk_load(state, 0, fields) == kind
