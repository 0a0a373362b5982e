"""wgmma: operands placed and accumulators read element by element, products from `arithmetic.mma.matmul`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fa4verify.arithmetic.formats import FORMATS, decode, encode
from fa4verify.arithmetic.mma import matmul
from fa4verify.ptx import wgmma as unit
from fa4verify.ptx.operations import (
    WGMMA_A_SHARED,
    WGMMA_NEGATE_A,
    WGMMA_NEGATE_B,
    WGMMA_TRANSPOSE_A,
    WGMMA_TRANSPOSE_B,
    MmaDtype,
    Pending,
)
from fa4verify.ptx.state import Fault, FaultField
from tests.ptx.layouts import a_fragment, d_fragment, k_major, mn_major, wgmma_descriptor
from tests.ptx.machine import FORMAT_NAME, caller, entry, machine, set64, set_code

issue_wgmma = caller(unit.issue_wgmma)
perform_wgmma = caller(unit.perform_wgmma)

A_SLOT, B_SLOT, PREDICATE = 240, 242, 3


def values_of(codes, fmt):
    with np.errstate(all="ignore"):
        return decode(codes, fmt).astype(np.float32)


class Case:
    """One instruction on 64 x N accumulators; run() gives what the registers hold and what they should."""

    def __init__(self, dtype, columns, a_major, b_major, swizzle, *, accumulate=1, negate=0, seed=0, scale=1.0):
        self.rng = np.random.default_rng(seed)
        self.format = FORMATS[FORMAT_NAME[dtype]]
        self.length = 32 // (self.format.width // 8)
        self.columns, self.dtype, self.accumulate, self.negate = columns, dtype, accumulate, negate
        self.a = encode(self.rng.standard_normal((64, self.length)) * scale, self.format)
        self.b = encode(self.rng.standard_normal((columns, self.length)), self.format)
        self.c = self.rng.standard_normal((64, columns)).astype(np.float32)
        self.a_major, self.b_major, self.swizzle = a_major, b_major, swizzle

    def state(self):
        """Place the operands and write the code."""
        state = machine()
        flags = int(self.dtype) | int(self.dtype) << 4 | self.negate
        place = {"k": k_major, "mn": mn_major}
        offsets = place[self.b_major](state.shared[0], 32768, self.b, self.swizzle)
        for w in range(4):
            set64(state, 0, w, B_SLOT, np.uint64(wgmma_descriptor(32768, *offsets, self.swizzle) & (2**64 - 1)))
        if self.b_major == "mn":
            flags |= WGMMA_TRANSPOSE_B
        count = self.columns // 2
        if self.a_major == "registers":
            parts = 32 // self.format.width
            for w, i, lane, part in itertools.product(range(4), range(4), range(32), range(parts)):
                row, k = a_fragment(i, lane, part, parts)
                if part == 0:
                    state.registers[0, w, count + i, lane] = 0
                state.registers[0, w, count + i, lane] |= np.uint32(
                    int(self.a[16 * w + row, k]) << (part * self.format.width)
                )
        else:
            flags |= WGMMA_A_SHARED | (WGMMA_TRANSPOSE_A if self.a_major == "mn" else 0)
            offsets = place[self.a_major](state.shared[0], 1024, self.a, self.swizzle)
            for w in range(4):
                set64(state, 0, w, A_SLOT, np.uint64(wgmma_descriptor(1024, *offsets, self.swizzle) & (2**64 - 1)))
        for w, i, lane in itertools.product(range(4), range(count), range(32)):
            row, column = d_fragment(i, lane)
            state.registers[0, w, i, lane] = self.c[16 * w + row, column].view(np.uint32)
        state.predicates[0, :, PREDICATE] = 0xFFFFFFFF if self.accumulate else 0
        set_code(
            state, 0, E=0, F=self.columns, A=-1 if self.a_major == "registers" else A_SLOT, B=B_SLOT, C=PREDICATE,
            IMM=flags,
        )  # fmt: skip
        return state

    def run(self):
        """Execute on four warps: bits of D got and expected."""
        state = self.state()
        before = state.registers.copy()
        count = self.columns // 2
        out = np.zeros((64, self.columns), np.uint32)
        for w in range(4):
            fields = entry(warp=w)
            assert issue_wgmma(state, 0, w, 0, 5, fields) == 0
            assert perform_wgmma(state, 0, fields) == 0, state.fault
            for i, lane in itertools.product(range(count), range(32)):
                row, column = d_fragment(i, lane)
                out[16 * w + row, column] = state.registers[0, w, i, lane]
        assert np.array_equal(state.registers[:, :, count:], before[:, :, count:]), "wrote elsewhere"
        return out, self.expected()

    def expected(self):
        """Bits of D from whole matrices."""
        a = values_of(self.a, self.format)
        if self.negate in (WGMMA_NEGATE_A, WGMMA_NEGATE_B):
            a = -a
        c = self.c if self.accumulate else None
        d = matmul(a, values_of(self.b, self.format).T, c, architecture="sm90", dtype=self.format.name)
        return d.view(np.uint32)


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize(("a_major", "b_major"), list(itertools.product(("k", "mn", "registers"), ("k", "mn"))))
def test_every_layout_of_both_operands(a_major, b_major, swizzle):
    got, expected = Case(MmaDtype.BF16, 64, a_major, b_major, swizzle, seed=swizzle).run()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("columns", [8, 24, 48, 80, 192, 256])
@pytest.mark.parametrize("b_major", ["k", "mn"])
def test_widths(columns, b_major):
    got, expected = Case(MmaDtype.F16, columns, "registers", b_major, 0, seed=columns).run()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", [MmaDtype.E4M3, MmaDtype.E5M2])
@pytest.mark.parametrize("a_major", ["k", "registers"])
def test_eight_bits(dtype, a_major):
    got, expected = Case(dtype, 32, a_major, "k", 3).run()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("accumulate", "negate"),
    [(0, 0), (1, WGMMA_NEGATE_A), (1, WGMMA_NEGATE_B), (1, WGMMA_NEGATE_A | WGMMA_NEGATE_B)],
)
def test_scale_d_and_negation(accumulate, negate):
    got, expected = Case(MmaDtype.BF16, 16, "k", "k", 3, accumulate=accumulate, negate=negate).run()
    assert np.array_equal(got, expected)
    other, _ = Case(MmaDtype.BF16, 16, "k", "k", 3).run()
    assert np.array_equal(got, other) == (negate == WGMMA_NEGATE_A | WGMMA_NEGATE_B)


@pytest.mark.parametrize("dtype", [MmaDtype.BF16, MmaDtype.F16])
def test_special_values_go_element_by_element(dtype):
    case = Case(dtype, 48, "k", "mn", 3, seed=3)
    fmt = case.format
    infinity, nan = encode([np.inf, np.nan], fmt)
    case.a[3, 5], case.a[20, 0], case.a[40, 1] = infinity, nan, encode([fmt.min_subnormal], fmt)[0]
    case.b[7, 5], case.b[8, 0] = 0, infinity | (1 << 15)
    case.b[:, 1] = encode(np.full(48, fmt.min_subnormal), fmt)
    case.c[50, :4] = np.inf, -np.inf, np.nan, np.float32(1e-44)
    case.a[50, :], case.c[51, :] = 0, np.float32(3e38)
    got, expected = case.run()
    assert np.array_equal(got, expected)
    kinds = np.isnan(got.view(np.float32)), np.isinf(got.view(np.float32))
    assert all(2 < kind.sum() < kind.size // 2 for kind in kinds)


def test_a_start_address_inside_the_pattern():
    """The second k16 of a 128-byte row starts 32 bytes on: the pattern follows the address, not the start."""
    case = Case(MmaDtype.BF16, 16, "registers", "k", 3)
    state = case.state()
    wide = np.concatenate([encode(np.full((16, 16), 9.0), case.format), case.b], 1)
    leading, stride = k_major(state.shared[0], 32768, wide, 3)
    for w in range(4):
        set64(state, 0, w, B_SLOT, np.uint64(wgmma_descriptor(32768 + 32, leading, stride, 3) & (2**64 - 1)))
    fields = entry(warp=2)
    assert issue_wgmma(state, 0, 2, 0, 0, fields) == perform_wgmma(state, 0, fields) == 0
    got = np.array([[state.registers[0, 2, i, lane] for lane in range(32)] for i in range(8)])
    rows = case.expected()[32:48]
    assert np.array_equal(got, [[rows[d_fragment(i, lane)] for lane in range(32)] for i in range(8)])


def test_faults():
    case = Case(MmaDtype.BF16, 64, "k", "k", 3)
    state = case.state()
    fields = entry()
    issue_wgmma(state, 0, 0, 0, 0, fields)
    fields[Pending.X1] |= 1 << 49  # base offset
    assert perform_wgmma(state, 0, fields) == Fault.DESCRIPTOR
    state.fault[:] = 0
    fields[Pending.X1] = wgmma_descriptor(65536 - 2048, 0, 1024, 3)  # rows 16 ... lie outside
    assert perform_wgmma(state, 0, fields) == Fault.SHARED_BOUNDS
    assert state.fault[FaultField.X0] == 65536
    state.fault[:] = 0
    state.predicates[0, 0, PREDICATE] = 1
    assert issue_wgmma(state, 0, 0, 0, 0, fields) == Fault.DIVERGENT
    state.fault[:] = 0
    fields[Pending.X2] = 1
    state.steps[:] = 0
    assert perform_wgmma(state, 0, fields) == Fault.UNKNOWN_OPERATION
