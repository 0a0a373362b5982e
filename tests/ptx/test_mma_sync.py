"""mma.sync: fragments element by element, products from `arithmetic.mma.matmul`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fa4verify.arithmetic.formats import FORMATS, decode, encode
from fa4verify.arithmetic.mma import matmul
from fa4verify.ptx import mma_sync as unit
from fa4verify.ptx.operations import MmaDtype
from fa4verify.ptx.state import Fault
from tests.ptx.layouts import a_fragment, b_fragment, d_fragment
from tests.ptx.machine import FORMAT_NAME, caller, machine, set_code

mma_sync = caller(unit.mma_sync)

ALL = 0xFFFFFFFF
D, A, B, C = 0, 4, 8, 12


def run(target, architecture, dtype, special):
    fmt = FORMATS[FORMAT_NAME[dtype]]
    rng = np.random.default_rng(int(dtype))
    length = 32 // (fmt.width // 8)
    a, b = encode(rng.standard_normal((16, length)), fmt), encode(rng.standard_normal((length, 8)), fmt)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    if special:
        a[2, 3] = encode([np.nan], fmt)[0]
        c[5, :3] = np.inf, np.nan, 1e-44
        a[5] = 0
    parts = 32 // fmt.width
    state = machine(target=target, slots=32)
    registers = state.registers[0, 1]
    registers[:16] = 0
    for lane, part in itertools.product(range(32), range(parts)):
        for i in range(4):
            registers[A + i, lane] |= np.uint32(int(a[a_fragment(i, lane, part, parts)]) << part * fmt.width)
        for i in range(2):
            registers[B + i, lane] |= np.uint32(int(b[b_fragment(i, lane, part, parts)]) << part * fmt.width)
    for lane, i in itertools.product(range(32), range(4)):
        registers[C + i, lane] = c[d_fragment(i, lane)].view(np.uint32)
    state.pool[20:34] = [D + 1, D + 3, D, D + 2, *range(A, A + 4), B, B + 1, *range(C, C + 4)]
    set_code(state, 0, E=20, F=length, IMM=int(dtype))
    assert mma_sync(state, 0, 1, 0, ALL) == 0, state.fault
    got = np.zeros((16, 8), np.uint32)
    for lane, i in itertools.product(range(32), range(4)):
        got[d_fragment(i, lane)] = registers[state.pool[20 + i], lane]
    with np.errstate(all="ignore"):
        values = [decode(x, fmt).astype(np.float32) for x in (a, b)]
    expected = matmul(*values, c, architecture=architecture, dtype=fmt.name)
    return got, expected.view(np.uint32)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("target", "architecture", "dtype"),
    [
        ("sm_80", "sm80", MmaDtype.BF16),
        ("sm_80", "sm80", MmaDtype.F16),
        ("sm_120a", "sm100", MmaDtype.BF16),
        ("sm_90a", "sm90", MmaDtype.F16),
        ("sm_89", "sm89", MmaDtype.E4M3),
    ],
)
def test_product(target, architecture, dtype, special):
    got, expected = run(target, architecture, dtype, special)
    assert np.array_equal(got, expected)


def test_the_target_shows():
    assert not np.array_equal(
        run("sm_80", "sm80", MmaDtype.BF16, False)[0], run("sm_90", "sm90", MmaDtype.BF16, False)[0]
    )


def test_refused():
    state = machine(slots=32)
    set_code(state, 0, E=20, F=16, IMM=int(MmaDtype.BF16))
    assert mma_sync(state, 0, 1, 0, 0xFFFF) == Fault.DIVERGENT
    for length, dtype in ((8, MmaDtype.BF16), (8, MmaDtype.TF32), (32, MmaDtype.E4M3)):
        state.fault[:] = 0
        set_code(state, 0, E=20, F=length, IMM=int(dtype))
        assert mma_sync(state, 0, 1, 0, ALL) == Fault.UNKNOWN_OPERATION
