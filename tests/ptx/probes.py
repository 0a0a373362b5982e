"""The programs of tests/golden/opcode_program, run on the machine: the same text and inputs as on a GPU."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fa4verify import ptx
from tests.golden.opcode_inputs import BITS
from tests.golden.opcode_program import SHARED, THREADS, inputs, program, stored

if TYPE_CHECKING:
    from tests.golden.opcode_list import Opcode


@cache
def kernel(opcode: Opcode) -> ptx.Kernel:
    """Return the kernel around one instruction."""
    return ptx.load(program(opcode))


def run(opcode: Opcode, operands: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of one thread an element; operands in whole blocks, the masks of exchanges last."""
    rows = len(operands[0])
    kinds = (*opcode.operands, *(["b32"] if opcode.exchange else []))
    given = [stored(x, kind).copy() for x, kind in zip(operands, kinds, strict=True)]
    results = [np.zeros(rows, "<u8" if BITS[kind] == 64 else "<u4") for kind in opcode.results]
    arrays = [*given, *results]
    kernel(opcode).launch(
        grid=(rows // THREADS, 1, 1),
        parameters=np.array([array.ctypes.data for array in arrays], np.uint64).tobytes(),
        memory=[(array.ctypes.data, array.nbytes) for array in arrays],
        shared_bytes=SHARED,
    )
    return [x.astype(np.uint64) for x in results]


def answers(opcode: Opcode, family: str) -> list[np.ndarray]:
    """Return the results of a family of inputs, without the padding."""
    operands, rows = inputs(opcode, family)
    return [x[:rows] for x in run(opcode, operands)]
