"""Accumulators of a warp, as its registers hold them and as rows of a panel, in LLVM vectors.

Contract: an 8 x 16 block lies in four slots: lane l of `a` holds column 2 (l & 3) of row l >> 2, `b` the column after
it, `c` and `d` the same 8 columns on. `rows_of_slots` writes the 8 rows of LANES words, `slots_of_rows` reads them. All
arguments are addresses.
Speed: 16 x 128 accumulators in or out take 0.1 us, their multiplication by k16 3.7 us (one AVX-512 core).
Numbers: PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16" and "mma.m16n8k16": d fragments.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fa4verify.arithmetic.mma_lanes import LANES

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, 16)
_HALVES = 2  # a slot's 32 lanes are two vectors, each for 4 rows
_FIRST_HALVES = [*range(8), *range(16, 24)]
_SECOND_HALVES = [*range(8, 16), *range(24, 32)]
_INTERLEAVED = [x for lane in range(8) for x in (lane, 16 + lane)]
_INTERLEAVED_HIGH = [x + 8 for x in _INTERLEAVED]
_SEPARATED = [
    [first + 16 * row + odd + 2 * q for odd in (0, 1) for row in (0, 1) for q in range(4)] for first in (0, 8)
]


def _pointer(builder: Any, address: Any, words: int) -> Any:
    return builder.inttoptr(builder.add(address, _I64(4 * words)), _WORDS.as_pointer())


def _shuffle(builder: Any, x: Any, y: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(x, y, ir.Constant(_WORDS, order))


def _addresses(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    return [
        context.cast(builder, value, kind, types.int64) for value, kind in zip(arguments, signature.args, strict=True)
    ]


def _rows_of_slots(_typing_context: Any, a: Any, b: Any, c: Any, d: Any, rows: Any) -> tuple[Any, Any]:
    """Write 8 rows from 4 slots."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *slots, rows = _addresses(context, builder, signature, arguments)
        for half in range(_HALVES):
            a, b, c, d = (builder.load(_pointer(builder, slot, 16 * half), align=4) for slot in slots)
            for pair, order in enumerate((_INTERLEAVED, _INTERLEAVED_HIGH)):
                low, high = _shuffle(builder, a, b, order), _shuffle(builder, c, d, order)
                for row, halves in enumerate((_FIRST_HALVES, _SECOND_HALVES)):
                    to = _pointer(builder, rows, (4 * half + 2 * pair + row) * LANES)
                    builder.store(_shuffle(builder, low, high, halves), to, align=4)
        return context.get_dummy_value()

    return types.void(a, b, c, d, rows), codegen


def _slots_of_rows(_typing_context: Any, a: Any, b: Any, c: Any, d: Any, rows: Any) -> tuple[Any, Any]:
    """Write 4 slots from 8 rows."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *slots, rows = _addresses(context, builder, signature, arguments)
        for half in range(_HALVES):
            words = [builder.load(_pointer(builder, rows, (4 * half + row) * LANES), align=4) for row in range(4)]
            for columns, order in enumerate(_SEPARATED):
                first, second = (_shuffle(builder, words[i], words[i + 1], order) for i in (0, 2))
                for odd, halves in enumerate((_FIRST_HALVES, _SECOND_HALVES)):
                    to = _pointer(builder, slots[2 * columns + odd], 16 * half)
                    builder.store(_shuffle(builder, first, second, halves), to, align=4)
        return context.get_dummy_value()

    return types.void(a, b, c, d, rows), codegen


# Not as decorators: numba types an intrinsic as taking the typing context, which its callers do not pass.
rows_of_slots: Any = intrinsic(_rows_of_slots)
slots_of_rows: Any = intrinsic(_slots_of_rows)
