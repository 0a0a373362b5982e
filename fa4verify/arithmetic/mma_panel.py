"""One panel of a matrix multiply by address: `mma.accumulate` for operands that `operands.py` has made ready.

Contract: the same steps and bits as `mma.accumulate_panel`; a caller that multiplies small matrices all the time keeps
one block of memory instead of arrays, whose creation and counting of references would cost as much as 16 x 16 x 128.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from fa4verify.arithmetic.mma import step_element
from fa4verify.arithmetic.mma_lanes import LANES, LOWEST_PRODUCT, ROWS, step_at


class Operands(NamedTuple):
    """Addresses; shapes in brackets, M rows (a multiple of ROWS), K columns of A, S = K // k_step."""

    left_source: int  # float32 [M, K]
    left_values: int  # float32 [M, K]
    left_exponents: int  # int32 [M, K]
    left_scales: int  # int32 [M, S]
    right_values: int  # float32 [K, LANES] of the panel
    right_exponents: int  # int32 [K, LANES]
    right_largest: int  # int64 [S]
    accumulators: int  # float32 [M, LANES]


def _pointer(_typing_context: Any, _address: Any, like: Any) -> tuple[Any, Any]:
    """Return a pointer to values of the type of `like` at an address."""
    kind = types.CPointer(like)  # type: ignore[no-untyped-call]

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return kind(types.int64, like), codegen


pointer: Any = intrinsic(_pointer)


@njit(cache=True)
def _one_by_one(operands, undone, first, start, length, step):  # type: ignore[no-untyped-def]
    """Take the step at k = start of those lanes of ROWS rows that `step_at` has left."""
    a = carray(pointer(operands.left_source + 4 * (first * length + start), np.float32(0)), (ROWS, length))
    b = carray(pointer(operands.right_values + 4 * start * LANES, np.float32(0)), (step.k_step, LANES))
    c = carray(pointer(operands.accumulators + 4 * first * LANES, np.float32(0)), (ROWS, LANES))
    for r in range(ROWS):
        for j in range(LANES):
            if (undone >> np.uint64(r * LANES + j)) & np.uint64(1):
                c[r, j] = step_element(a[r], b[:, j], c[r, j], step)


@njit(cache=True)
def accumulate_at(operands, rows, length, step):  # type: ignore[no-untyped-def]
    """Chain all steps onto `rows` rows (a multiple of ROWS) of one panel; length: K."""
    steps = length // step.k_step
    largest = carray(pointer(operands.right_largest, np.int64(0)), (steps,))
    for i in range(steps):
        start = i * step.k_step
        lowest = LOWEST_PRODUCT + max(0, largest[i])
        for first in range(0, rows, ROWS):
            at = 4 * (first * length + start)
            undone = step_at(
                operands.left_values + at, operands.left_exponents + at, operands.left_scales + 4 * (first * steps + i),
                operands.right_values + 4 * start * LANES, operands.right_exponents + 4 * start * LANES,
                operands.accumulators + 4 * first * LANES, length, steps, step.k_step, step.fraction_bits,
                step.output_bits, lowest,
            )  # fmt: skip
            if undone != 0:
                _one_by_one(operands, undone, first, start, length, step)
