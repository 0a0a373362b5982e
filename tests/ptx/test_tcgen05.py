"""tcgen05: tensor memory and its layouts element by element, products from `arithmetic.mma.matmul`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fa4verify.arithmetic.formats import FORMATS, decode, encode
from fa4verify.arithmetic.mma import matmul
from fa4verify.ptx import mbarrier, tcgen05, tcgen05_mma
from fa4verify.ptx.operations import (
    TC_A_IN_TMEM,
    TC_DISABLED_SHIFT,
    TC_KIND_F8F6F4,
    TC_KIND_F16,
    Column,
    MmaDtype,
    Pending,
    TcReduction,
    TcShape,
)
from fa4verify.ptx.state import Cta, Fault
from tests.ptx.layouts import k_major, mn_major, tcgen05_descriptor
from tests.ptx.machine import FORMAT_NAME, caller, entry, machine, set64, set_code

init = caller(mbarrier.init)
parity_of = caller(mbarrier.parity_of)
issue_tc_commit = caller(tcgen05.issue_tc_commit)
issue_tc_ld = caller(tcgen05.issue_tc_ld)
issue_tc_mma = caller(tcgen05_mma.issue_tc_mma)
perform_tc_commit = caller(tcgen05.perform_tc_commit)
perform_tc_ld = caller(tcgen05.perform_tc_ld)
perform_tc_st = caller(tcgen05.perform_tc_st)
perform_tc_mma = caller(tcgen05_mma.perform_tc_mma)
tc_alloc = caller(tcgen05.tc_alloc)
tc_dealloc = caller(tcgen05.tc_dealloc)

ALL = 0xFFFFFFFF
A_PLACE, B_PLACE, D_COLUMN, A_COLUMN = 1024, 32768, 128, 16
CODES = {MmaDtype.F16: 0, MmaDtype.BF16: 1, MmaDtype.E4M3: 0, MmaDtype.E5M2: 1}


def values_of(codes, fmt):
    with np.errstate(all="ignore"):
        return decode(codes, fmt).astype(np.float32)


def place_of_d(row, column, rows, columns, pair):
    """CTA, lane and column of an element of D, as the ISA's figures of layouts A, B, D and F show it."""
    if not pair:
        if rows == 128:
            return 0, row, column
        return 0, {0: 0, 1: 32, 2: 64, 3: 96}[row // 16] + row % 16, column
    cta, row = divmod(row, rows // 2)
    if rows == 256:
        return cta, row, column
    half, column = divmod(column, columns // 2)
    return cta, row + 64 * half, column


class Product:
    """One instruction; run() gives D in tensor memory and what it should be."""

    def __init__(self, rows, columns, *, pair=False, dtype=MmaDtype.BF16, a_major="k", b_major="k", swizzle=3, seed=0):
        self.format = FORMATS[FORMAT_NAME[dtype]]
        self.rows, self.columns, self.pair, self.swizzle = rows, columns, pair, swizzle
        length = 32 // (self.format.width // 8)
        rng = np.random.default_rng(seed)
        self.a = encode(rng.standard_normal((rows, length)), self.format)
        self.b = encode(rng.standard_normal((columns, length)), self.format)
        self.c = rng.standard_normal((rows, columns)).astype(np.float32)
        self.ctas = 2 if pair else 1
        self.a_major = a_major
        self.descriptor = (
            1 << 4 | CODES[dtype] << 7 | CODES[dtype] << 10 | (a_major == "mn") << 15 | (b_major == "mn") << 16
            | columns // 8 << 17 | rows // 16 << 24
        )  # fmt: skip
        self.kind = TC_KIND_F8F6F4 if self.format.width == 8 else TC_KIND_F16
        self.accumulate, self.b_major, self.offset = True, b_major, 0

    def state(self):
        """Place the operands, the accumulators and the registers."""
        state = machine(target="sm_100a", ctas=self.ctas + 1, slots=16, tensor=True)
        state.ctas[:, Cta.TMEM_COLUMNS] = 512
        place = {"k": k_major, "mn": mn_major}
        flags = self.kind << 4
        for cta in range(self.ctas):
            a, b = (np.split(x, self.ctas)[cta] for x in (self.a, self.b))
            offsets = place[self.b_major](state.shared[cta], B_PLACE, b, self.swizzle)
            set64(state, 0, 0, 4, np.uint64(tcgen05_descriptor(B_PLACE, *offsets, self.swizzle) & (2**64 - 1)))
            if self.a_major == "tensor":
                state.tensor[cta, :, A_COLUMN : A_COLUMN + 8] = a.view(np.uint32)
            else:
                offsets = place[self.a_major](state.shared[cta], A_PLACE, a, self.swizzle)
                set64(state, 0, 0, 2, np.uint64(tcgen05_descriptor(A_PLACE, *offsets, self.swizzle) & (2**64 - 1)))
        if self.a_major == "tensor":
            flags |= TC_A_IN_TMEM
            state.registers[0, 0, 2] = A_COLUMN - 8
        for row, column in np.ndindex(self.rows, self.columns):
            cta, lane, at = place_of_d(row, column, self.rows, self.columns, self.pair)
            state.tensor[cta, lane, D_COLUMN + at] = self.c[row, column].view(np.uint32)
        state.registers[0, 0, 0], state.registers[0, 0, 6] = D_COLUMN, self.descriptor
        state.predicates[0, 0, 5] = 1 << 7 if self.accumulate else ALL ^ 1 << 7
        set_code(state, 0, D=0, A=2, G=8, B=4, C=6, E=5, F=self.ctas, IMM=flags)
        return state

    def run(self):
        """Execute by lane 7: bits of D got and expected."""
        state = self.state()
        before = state.tensor.copy()
        fields = entry(lane=7)
        assert issue_tc_mma(state, 0, 0, 0, 7, fields) == perform_tc_mma(state, 0, fields) == 0, state.fault
        got = np.zeros((self.rows, self.columns), np.uint32)
        for row, column in np.ndindex(*got.shape):
            cta, lane, at = place_of_d(row, column, self.rows, self.columns, self.pair)
            got[row, column] = state.tensor[cta, lane, D_COLUMN + at]
            state.tensor[cta, lane, D_COLUMN + at] = before[cta, lane, D_COLUMN + at]
        assert np.array_equal(state.tensor, before), "wrote elsewhere"
        return got, self.expected()

    def expected(self):
        """Bits of D from whole matrices."""
        c = self.c if self.accumulate else None
        a, b = values_of(self.a, self.format), values_of(self.b, self.format)
        return matmul(a, b.T, c, architecture="sm100", dtype=self.format.name).view(np.uint32)


@pytest.mark.parametrize(("rows", "pair"), [(64, False), (128, False), (128, True), (256, True)])
@pytest.mark.parametrize(("a_major", "b_major"), list(itertools.product(("k", "mn"), ("k", "mn"))))
def test_where_d_lies(rows, pair, a_major, b_major):
    swizzle = {"k": 3, "mn": 2}[b_major]
    got, expected = Product(rows, 64, pair=pair, a_major=a_major, b_major=b_major, swizzle=swizzle).run()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_patterns(swizzle, major):
    got, expected = Product(64, 64, a_major=major, b_major=major, swizzle=swizzle, dtype=MmaDtype.F16).run()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(("rows", "pair"), [(128, False), (256, True)])
def test_a_in_tensor_memory(rows, pair):
    got, expected = Product(rows, 96, pair=pair, a_major="tensor").run()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", [MmaDtype.E4M3, MmaDtype.E5M2])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_eight_bits(dtype, major):
    got, expected = Product(128, 128, dtype=dtype, a_major=major, b_major=major).run()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("columns", [16, 48, 256])
def test_widths(columns):
    got, expected = Product(128, columns, seed=columns).run()
    assert np.array_equal(got, expected)


def test_without_accumulation_d_is_not_read():
    product = Product(128, 32)
    product.accumulate = False
    product.c[...] = np.nan
    got, expected = product.run()
    assert np.array_equal(got, expected)
    assert not np.isnan(got.view(np.float32)).any()


def test_negated_operand_and_special_values():
    product = Product(64, 32)
    product.descriptor |= 1 << 13
    product.a[3, 5] = encode([np.inf], product.format)[0]
    product.c[4, :3] = np.inf, np.nan, 1e-44
    got, _ = product.run()
    product.a ^= 0x8000
    assert np.array_equal(got, product.expected())


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"descriptor": 1 << 3}, Fault.DESCRIPTOR),  # saturation
        ({"descriptor": 1 << 4}, Fault.DESCRIPTOR),  # D in fp16
        ({"descriptor": 1 << 7}, Fault.DESCRIPTOR),  # A and B differ
        ({"descriptor": 1 << 24}, Fault.DESCRIPTOR),  # M = 144
        ({"b": 1 << 49}, Fault.DESCRIPTOR),  # base offset
        ({"b": 1 << 61}, Fault.DESCRIPTOR),  # 32-byte atoms
        ({"a": 1 << 46}, Fault.DESCRIPTOR),  # version 0
        ({"b": 4096 ^ 2048}, Fault.SHARED_BOUNDS),
        ({"d": 512 - 16 ^ 128}, Fault.TMEM_BOUNDS),
        ({"d": 1 << 16}, Fault.TMEM_BOUNDS),
    ],
)
def test_faults(change, kind):
    product = Product(128, 32)
    state = product.state()
    fields = entry(lane=7)
    issue_tc_mma(state, 0, 0, 0, 7, fields)
    fields[Pending.X0] ^= change.get("d", 0)
    fields[Pending.X1] ^= change.get("a", 0)
    fields[Pending.X2] ^= change.get("b", 0)
    fields[Pending.X3] ^= change.get("descriptor", 0)
    assert perform_tc_mma(state, 0, fields) == kind


def test_lanes_of_d_that_are_to_be_left_alone_must_be_none():
    product = Product(128, 32)
    state = product.state()
    state.pool[40:45] = 8, 9, 10, 11, 12
    state.code[0, Column.IMM] |= 41 << TC_DISABLED_SHIFT
    state.registers[0, 0, 8:12] = 0
    fields = entry(lane=7)
    assert issue_tc_mma(state, 0, 0, 0, 7, fields) == perform_tc_mma(state, 0, fields) == 0
    state.registers[0, 0, 11, 7] = 1 << 31
    assert issue_tc_mma(state, 0, 0, 0, 7, fields) == Fault.UNKNOWN_OPERATION
    state.registers[0, 0, 11, 7], state.registers[0, 0, 12] = 0, 1
    state.fault[:] = 0
    assert issue_tc_mma(state, 0, 0, 0, 7, fields) == 0, "four words for one CTA, no more"


def test_the_odd_cta_does_not_issue():
    state = Product(256, 32, pair=True).state()
    fields = entry(lane=7)
    issue_tc_mma(state, 0, 0, 0, 7, fields)
    assert perform_tc_mma(state, 1, fields) == Fault.DESCRIPTOR
    state.fault[:] = 0
    assert perform_tc_mma(state, 2, fields) == Fault.DESCRIPTOR  # alone: no partner


@pytest.mark.parametrize("count", [1, 32])
def test_load_and_store(count):
    state = machine(target="sm_100a", slots=80, tensor=True)
    state.ctas[0, Cta.TMEM_COLUMNS] = 256
    rng = np.random.default_rng(1)
    state.tensor[...] = rng.integers(0, 2**32, state.tensor.shape)
    state.pool[:count] = rng.permutation(64)[:count]
    for operation, unit in ((0, perform_tc_ld), (1, perform_tc_st)):
        state.registers[0, 2, 70] = 64 << 16 | 100
        set_code(state, 0, A=70, IMM=3, E=0, F=count, G=int(TcShape.S32X32B))
        registers, tensor = state.registers.copy(), state.tensor.copy()
        for i, lane in itertools.product(range(count), range(32)):
            if operation == 0:
                registers[0, 2, state.pool[i], lane] = tensor[0, 64 + lane, 103 + i]
            else:
                tensor[0, 64 + lane, 103 + i] = registers[0, 2, state.pool[i], lane]
        fields = entry(warp=2)
        assert issue_tc_ld(state, 0, 2, 0, 0, fields) == unit(state, 0, fields) == 0
        assert np.array_equal(state.registers, registers)
        assert np.array_equal(state.tensor, tensor)
        state.registers[0, :, :64] = rng.integers(0, 2**32, state.registers[0, :, :64].shape)


def test_loads_outside():
    state = machine(target="sm_100a", slots=80, tensor=True)
    state.ctas[0, Cta.TMEM_COLUMNS] = 64
    set_code(state, 0, A=70, IMM=0, E=0, F=8, G=int(TcShape.S32X32B))
    for warp, address, kind in ((1, 32 << 16, 0), (1, 0, Fault.TMEM_BOUNDS), (1, 32 << 16 | 57, Fault.TMEM_BOUNDS)):
        state.registers[0, warp, 70] = address
        state.fault[:] = 0
        fields = entry(warp=warp)
        issue_tc_ld(state, 0, warp, 0, 0, fields)
        assert perform_tc_ld(state, 0, fields) == kind
    state.code[0, Column.G] = int(TcShape.S16X64B)
    state.fault[:] = 0
    assert perform_tc_st(state, 0, fields) == Fault.UNKNOWN_OPERATION


@pytest.mark.parametrize("flags", range(8))
def test_reduction_of_a_load(flags):
    numbers = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38]
    rng = np.random.default_rng(flags)
    state = machine(target="sm_100a", slots=80, tensor=True)
    state.ctas[0, Cta.TMEM_COLUMNS] = 64
    drawn = rng.choice(np.float32(numbers), (32, 3))
    drawn[0] = np.nan
    state.tensor[0, :32, 5:8] = drawn.view(np.uint32)
    set_code(state, 0, A=70, IMM=5, E=0, F=3, G=int(TcShape.S32X32B), D=60, B=flags)
    state.registers[0, 0, 70] = 0
    fields = entry()
    issue_tc_ld(state, 0, 0, 0, 0, fields)
    assert perform_tc_ld(state, 0, fields) == 0
    for lane in range(32):
        row = [abs(float(x)) if flags & 2 else float(x) for x in drawn[lane]]
        best = (min if flags & 1 == TcReduction.MIN_F32 else max)(
            (x for x in row if x == x), key=lambda x: (x, np.copysign(1.0, x)), default=np.nan
        )
        if flags & 4 and any(x != x for x in row):
            best = np.nan
        bits = 0x7FFFFFFF if best != best else int(np.float32(best).view(np.uint32))
        assert state.registers[0, 0, 60, lane] == bits, (row, lane)


def test_commit():
    state = machine(target="sm_100a", ctas=3, slots=8)
    for rank in range(3):
        assert init(state, 0, rank << 24 | 64, 1) == 0
    set_code(state, 0, A=0, IMM=24, B=-1, F=1)
    state.registers[0, 0, 0] = 1 << 24 | 40
    fields = entry()
    assert issue_tc_commit(state, 0, 0, 0, 3, fields) == perform_tc_commit(state, 0, fields) == 0
    parities = [parity_of(state, 0, rank << 24 | 64) for rank in range(3)]
    assert parities == [0, 1, 0]
    set_code(state, 0, A=0, IMM=24, B=1, F=2)
    state.registers[0, 0, 1] = 0b101
    assert issue_tc_commit(state, 0, 0, 0, 3, fields) == perform_tc_commit(state, 0, fields) == 0
    assert [parity_of(state, 0, rank << 24 | 64) for rank in range(3)] == [1, 1, 1]
    state.registers[0, 0, 1] = 0b1000
    issue_tc_commit(state, 0, 0, 0, 3, fields)
    assert perform_tc_commit(state, 0, fields) == Fault.SHARED_BOUNDS


def test_allocation():
    state = machine(target="sm_100a", slots=8, tensor=True)
    state.tensor[...] = 7
    set_code(state, 0, A=0, IMM=8, B=1, F=1)
    set_code(state, 1, A=2, B=1, F=1)
    state.registers[0, 0, 0] = 2040

    def alloc(columns):
        state.registers[0, 0, 1] = columns
        state.fault[:] = 0
        return tc_alloc(state, 0, 0, 0, ALL), state.shared[0, 2048:2052].view(np.uint32)[0]

    def free(address, columns):
        state.registers[0, 0, 2], state.registers[0, 0, 1] = address, columns
        state.fault[:] = 0
        return tc_dealloc(state, 0, 0, 1, ALL)

    assert alloc(256) == (0, 0)
    assert (state.tensor[0, :, :256] == 0xFFFFFFFF).all()
    assert (state.tensor[0, :, 256:] == 7).all()
    assert alloc(32) == (0, 256)
    assert [alloc(columns)[0] for columns in (16, 48, 256)] == [Fault.TMEM_ALLOCATION] * 3
    assert free(0, 256) == Fault.TMEM_ALLOCATION
    assert free(256, 32) == free(0, 256) == 0
    assert state.ctas[0, Cta.TMEM_COLUMNS] == 0
    assert tc_alloc(state, 0, 0, 0, 1) == Fault.DIVERGENT
