"""Boxes of tensors, element by element in Python, against the machine's copies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fa4verify.ptx import mbarrier
from fa4verify.ptx import tma as unit
from fa4verify.ptx.operations import PARAMETER_BASE, Atomic, Column
from fa4verify.ptx.state import Fault, FaultField
from fa4verify.ptx.tensor_map import TensorMap, encode
from tests.ptx.machine import caller, entry, machine, set64, set_code

change = caller(mbarrier.change)
init = caller(mbarrier.init)
parity_of = caller(mbarrier.parity_of)
issue_tensor_load = caller(unit.issue_tensor_load)
issue_tensor_store = caller(unit.issue_tensor_store)
perform_tensor_load = caller(unit.perform_tensor_load)
perform_tensor_reduce = caller(unit.perform_tensor_reduce)
perform_tensor_store = caller(unit.perform_tensor_store)

KIND = {"u8": np.uint8, "bf16": np.uint16, "f32": np.float32, "u64": np.uint64}
BARRIER, PLACE = 64, 2048
D, A, C, MASK, COORDINATES = 0, 2, 4, 5, 10


class Copy:
    """A tensor with gaps between its rows, a box in it, and a machine that knows both."""

    def __init__(self, element, sizes, box, start, swizzle=0, ctas=1, offset=PLACE):
        self.kind, self.box, self.start, self.swizzle, self.offset = KIND[element], box, start, swizzle, offset
        self.element_bytes = np.dtype(self.kind).itemsize
        pitch = -(-sizes[0] * self.element_bytes // 16) * 16 + 16
        strides, total = [], pitch
        for size in sizes[1:]:
            strides.append(total)
            total *= size
        self.raw = np.random.default_rng(1).integers(0, 256, total + 64, np.uint8)
        base = -self.raw.ctypes.data % 16 + 16
        self.tensor = np.ndarray(
            sizes[::-1], self.kind, self.raw.data, base, (*strides[::-1], self.element_bytes)
        )  # outermost first
        if self.kind is np.float32:
            self.tensor[...] = np.random.default_rng(2).standard_normal(self.tensor.shape)
        written = TensorMap(self.raw.ctypes.data + base, element, sizes, tuple(strides), box, swizzle)
        self.memory = self.raw[base : base + total]
        self.state = machine(ctas=ctas, slots=16, memory=[self.memory], parameters=encode(written))
        set_code(self.state, 0, D=D, IMM=offset - 1024, A=A, C=C, G=BARRIER - 32, E=COORDINATES, F=len(sizes), B=-1)
        self.state.registers[0, 0, D] = 1024
        self.state.registers[0, 0, C] = 32
        set64(self.state, 0, 0, A, PARAMETER_BASE)
        for i, at in enumerate(start):
            self.state.registers[0, 0, COORDINATES + i] = np.uint32(at & 0xFFFFFFFF)
        self.bytes = int(np.prod(box)) * self.element_bytes

    def elements(self):
        """Index in the tensor (None outside) and shared address of every element of the box."""
        width = self.box[0] * self.element_bytes
        for j in itertools.product(*(range(size) for size in self.box[::-1])):
            at = [c + s for c, s in zip(j, self.start[::-1], strict=True)]
            inside = all(0 <= x < n for x, n in zip(at, self.tensor.shape, strict=True))
            line = int(np.ravel_multi_index(j[:-1], self.box[:0:-1])) if len(j) > 1 else 0
            plain = self.offset + line * width + j[-1] * self.element_bytes
            row, chunk = plain // 128, plain // 16 % 8
            chunk ^= row % (1 << self.swizzle)  # 8, 4 or 2 rows of 128 bytes, and the pattern comes again
            yield tuple(at) if inside else None, row * 128 + chunk * 16 + plain % 16

    def load(self, lane=3):
        """Issue and perform, by one lane."""
        fields = entry(lane=lane)
        assert issue_tensor_load(self.state, 0, 0, 0, lane, fields) == 0
        return perform_tensor_load(self.state, 0, fields)


CASES = {
    "line": ("u8", (100,), (32,), (80,)),
    "inside": ("bf16", (64, 40), (64, 16), (0, 3)),
    "last rows": ("bf16", (64, 40), (64, 16), (0, 31)),
    "before": ("bf16", (64, 40), (16, 8), (-5, -3)),
    "odd end": ("bf16", (33, 9), (16, 4), (24, 2)),
    "bytes": ("u8", (50, 6, 3), (32, 4, 2), (30, 4, 2)),
    "wide": ("u64", (5, 6, 3, 2), (4, 2, 3, 1), (2, 5, -1, 1)),
    "five": ("f32", (8, 3, 4, 2, 3), (8, 2, 3, 2, 2), (0, 2, -2, 1, 2)),
    "nowhere": ("f32", (8, 3), (4, 4), (8, 0)),
}


def check_load(copy):
    state = copy.state
    assert init(state, 0, BARRIER, 1) == 0
    assert change(state, 0, BARRIER, 1, copy.bytes, 0) == 0
    expected = state.shared[0].copy()
    for at, place in copy.elements():
        value = np.zeros(1, copy.kind) if at is None else copy.tensor[at].reshape(1)
        expected[place : place + copy.element_bytes] = value.view(np.uint8)
    assert parity_of(state, 0, BARRIER) == 0
    assert copy.load() == 0, state.fault
    assert parity_of(state, 0, BARRIER) == 1
    expected[BARRIER : BARRIER + 8] = state.shared[0, BARRIER : BARRIER + 8]
    assert np.array_equal(state.shared[0], expected)


@pytest.mark.parametrize("name", CASES)
def test_load(name):
    check_load(Copy(*CASES[name]))


@pytest.mark.parametrize("before", [0, 1 << 40])
def test_an_address_that_wraps(before):
    """As FA4 writes packed sequences: a third dimension leads around all 57 bits, or back to where the memory is."""
    copy = Copy(*CASES["inside"])
    stride, there = 1 << 28, (before or 1 << 57) >> 28
    sizes, strides = (64, 40, 2**31 - 1), (copy.tensor.strides[0], stride)
    address = (copy.memory.ctypes.data - before) % 2**64
    copy.state.parameters[:128] = np.frombuffer(
        encode(TensorMap(address, "bf16", sizes, strides, (64, 16, 1))), np.uint8
    )
    copy.state.code[0, Column.F] = 3
    copy.state.registers[0, 0, COORDINATES + 2] = there
    check_load(copy)


@pytest.mark.parametrize("swizzle", [1, 2, 3])
@pytest.mark.parametrize("offset", [1024, 1024 + 128, 3072 + 640])
def test_patterns_follow_the_address(swizzle, offset):
    width = 16 << swizzle
    check_load(Copy("bf16", (160, 40), (width // 2, 24), (24, 20), swizzle, offset=offset))
    check_load(Copy("u8", (300, 40), (width, 9), (-3, 33), swizzle, offset=offset))


@pytest.mark.parametrize("name", CASES)
def test_store_is_the_way_back(name):
    copy = Copy(*CASES[name])
    copy.state.shared[0] = np.random.default_rng(5).integers(0, 256, copy.state.shared.shape[1])
    expected, old, before = copy.tensor.copy(), copy.tensor.copy(), copy.raw.copy()
    for at, place in copy.elements():
        if at is not None:
            expected[at] = copy.state.shared[0, place : place + copy.element_bytes].view(copy.kind)[0]
    fields = entry(lane=3)
    issue_tensor_store(copy.state, 0, 0, 0, 3, fields)
    assert perform_tensor_store(copy.state, 0, fields) == 0
    got = copy.tensor.copy()
    assert got.tobytes() == expected.tobytes()
    copy.tensor[...] = old
    assert np.array_equal(copy.raw, before), "wrote between the rows"


def test_reduce_adds_floats():
    copy = Copy(*CASES["five"])
    copy.state.code[0, Column.G] = Atomic.ADD_F32
    copy.state.shared[0].view(np.float32)[:] = np.random.default_rng(5).standard_normal(copy.state.shared.shape[1] // 4)
    expected = copy.tensor.copy()
    for at, place in copy.elements():
        if at is not None:
            expected[at] += copy.state.shared[0, place : place + 4].view(np.float32)[0]
    fields = entry()
    issue_tensor_store(copy.state, 0, 0, 0, 3, fields)
    assert perform_tensor_reduce(copy.state, 0, fields) == 0
    assert np.array_equal(copy.tensor, expected)


def test_multicast_reaches_the_mask_alone():
    copy = Copy(*CASES["inside"], ctas=4)
    state = copy.state
    set_code(state, 0, D=D, IMM=PLACE - 1024, A=A, C=C, G=BARRIER - 32, E=COORDINATES, F=2, B=MASK)
    state.registers[0, 0, MASK] = 0b1011
    for rank in range(4):
        address = rank << 24 | BARRIER
        assert init(state, 0, address, 1) == change(state, 0, address, 1, copy.bytes, 0) == 0
    untouched = state.shared[2].copy()
    assert copy.load() == 0
    assert [parity_of(state, 0, rank << 24 | BARRIER) for rank in range(4)] == [1, 1, 0, 1]
    assert np.array_equal(state.shared[2], untouched)
    box = slice(PLACE, PLACE + copy.bytes)
    assert np.array_equal(state.shared[0, box].view(np.uint16).reshape(16, 64), copy.tensor[3:19])
    assert np.array_equal(state.shared[0, box], state.shared[1, box])
    assert np.array_equal(state.shared[0, box], state.shared[3, box])


def test_load_into_another_cta():
    copy = Copy(*CASES["inside"], ctas=2)
    state = copy.state
    state.registers[0, 0, D] |= 1 << 24
    assert init(state, 0, BARRIER, 1) == change(state, 0, BARRIER, 1, copy.bytes, 0) == 0
    assert copy.load() == 0
    box = slice(PLACE, PLACE + copy.bytes)
    assert np.array_equal(state.shared[1, box].view(np.uint16).reshape(16, 64), copy.tensor[3:19])
    assert (state.shared[0, box] == 0xFF).all()


def faulty(change, kind, *, rank=2):
    copy = Copy(*CASES["inside"])
    init(copy.state, 0, BARRIER, 1)
    change(copy)
    copy.state.code[0, Column.F] = rank
    assert copy.load(lane=9) == kind
    assert copy.state.fault[FaultField.LANE] == 9
    return copy


def test_faults():
    def set_map(copy):
        copy.state.parameters[9] |= 0x80  # bit 15 of the flags

    faulty(set_map, Fault.TENSOR_MAP)
    faulty(lambda _copy: None, Fault.TENSOR_MAP, rank=3)
    faulty(lambda copy: set64(copy.state, 0, 0, A, PARAMETER_BASE + 64), Fault.TENSOR_MAP)
    faulty(lambda copy: copy.state.registers[0, 0, D].fill(1040), Fault.MISALIGNED)
    faulty(lambda copy: copy.state.registers[0, 0, D].fill(65536 - 2048), Fault.SHARED_BOUNDS)
    copy = faulty(lambda copy: copy.state.memory[0].__setitem__(1, 144 * 18 + 127), Fault.GLOBAL_BOUNDS)
    assert copy.state.fault[FaultField.X0] == copy.memory.ctypes.data + 144 * 18
    assert copy.state.fault[FaultField.X1] == 128


def test_a_box_narrower_than_its_pattern_is_refused():
    copy = Copy("bf16", (64, 40), (32, 16), (0, 0), 3)
    assert copy.load() == Fault.TENSOR_MAP
