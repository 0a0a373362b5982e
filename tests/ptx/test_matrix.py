"""ldmatrix and stmatrix, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from fa4verify.ptx import matrix as unit
from fa4verify.ptx.state import Fault, FaultField
from tests.ptx.machine import caller, machine, set_code

ldmatrix = caller(unit.ldmatrix)
stmatrix = caller(unit.stmatrix)

ALL = 0xFFFFFFFF
A = 0


def element(lane, half, transposed):
    """Row and column of the half of a register."""
    row, column = lane // 4, 2 * (lane % 4) + half
    return (column, row) if transposed else (row, column)


def scattered(state, count, seed=0):
    """Rows in random places; their addresses in slot A, less 16."""
    places = np.random.default_rng(seed).permutation(200)[: 8 * count] * 16 + 1024
    state.registers[0, 1, A] = 3  # lanes that name no row are not looked at
    state.registers[0, 1, A, : 8 * count] = places - 16
    return places


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_load(count, transposed):
    state = machine(slots=16)
    state.shared[0] = np.random.default_rng(1).integers(0, 256, state.shared.shape[1])
    places = scattered(state, count)
    set_code(state, 0, A=A, IMM=16, E=3, F=count, B=transposed)
    state.pool[3 : 3 + count] = [7, A, 9, 5][:count]  # one register is the address itself
    expected = state.registers.copy()
    for j in range(count):
        for lane in range(32):
            word = 0
            for half in range(2):
                row, column = element(lane, half, transposed)
                at = places[8 * j + row] + 2 * column
                word |= int(state.shared[0, at]) << 16 * half | int(state.shared[0, at + 1]) << (16 * half + 8)
            expected[0, 1, state.pool[3 + j], lane] = word
    assert ldmatrix(state, 0, 1, 0, ALL) == 0
    assert np.array_equal(state.registers, expected)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_store(count, transposed):
    state = machine(slots=16)
    state.registers[...] = np.random.default_rng(2).integers(0, 2**32, state.registers.shape)
    places = scattered(state, count, 3)
    set_code(state, 0, A=A, IMM=16, E=3, F=count, B=transposed)
    state.pool[3 : 3 + count] = [7, 2, 9, 5][:count]
    expected = state.shared.copy()
    for j in range(count):
        for lane in range(32):
            for half in range(2):
                row, column = element(lane, half, transposed)
                at = places[8 * j + row] + 2 * column
                value = int(state.registers[0, 1, state.pool[3 + j], lane]) >> 16 * half
                expected[0, at : at + 2] = value & 255, value >> 8 & 255
    assert stmatrix(state, 0, 1, 0, ALL) == 0
    assert np.array_equal(state.shared, expected)


@pytest.mark.parametrize("function", [ldmatrix, stmatrix])
def test_faults(function):
    state = machine(slots=16)
    scattered(state, 4)
    set_code(state, 0, A=A, IMM=16, E=3, F=4, B=0)
    assert function(state, 0, 1, 0, ALL >> 1) == Fault.DIVERGENT
    state.fault[:] = 0
    state.registers[0, 1, A, 21] += 8
    assert function(state, 0, 1, 0, ALL) == Fault.MISALIGNED
    assert state.fault[FaultField.LANE] == 21
    state.fault[:] = 0
    state.registers[0, 1, A, 20] = 65536 - 16
    assert function(state, 0, 1, 0, ALL) == Fault.SHARED_BOUNDS
    assert state.fault[FaultField.X0] == 65536
