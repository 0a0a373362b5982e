"""The parts of the units that several instructions share, compiled once and called by address.

Contract: the field `units` of a State holds addresses of FUNCTIONS (linkage.py); the wrappers below call what lies
there. Arguments are those of the functions of the same name in `descriptors.py`, `product.py` and `boxes.py`.
"""

from __future__ import annotations

from enum import IntEnum

from fa4verify.ptx.boxes import copy_box as _copy_box
from fa4verify.ptx.calls import by_address, call_at
from fa4verify.ptx.descriptors import gather_left as _gather_left
from fa4verify.ptx.descriptors import gather_right as _gather_right
from fa4verify.ptx.inner import inner
from fa4verify.ptx.product import multiply as _multiply
from fa4verify.ptx.product import prepare_columns as _prepare_columns
from fa4verify.ptx.product import prepare_rows as _prepare_rows


class Unit(IntEnum):
    """Columns of State.units."""

    GATHER_LEFT = 0
    GATHER_RIGHT = 1
    PREPARE_ROWS = 2
    PREPARE_COLUMNS = 3
    MULTIPLY = 4
    COPY_BOX = 5


FUNCTIONS: dict[Unit, by_address] = {
    Unit.GATHER_LEFT: _gather_left,
    Unit.GATHER_RIGHT: _gather_right,
    Unit.PREPARE_ROWS: _prepare_rows,
    Unit.PREPARE_COLUMNS: _prepare_columns,
    Unit.MULTIPLY: _multiply,
    Unit.COPY_BOX: _copy_box,
}


@inner
def gather_left(units, base, size, matrix, transposed, first, rows, code_bytes, out):  # type: ignore[no-untyped-def]
    """Gather codes of A."""
    return call_at(
        units[Unit.GATHER_LEFT],
        (base, size, matrix.start, matrix.leading, matrix.stride, matrix.swizzle, transposed, first, rows, code_bytes,
         out),
    )  # fmt: skip


@inner
def gather_right(units, base, size, matrix, transposed, first, rows, code_bytes, out):  # type: ignore[no-untyped-def]
    """Gather codes of B."""
    return call_at(
        units[Unit.GATHER_RIGHT],
        (base, size, matrix.start, matrix.leading, matrix.stride, matrix.swizzle, transposed, first, rows, code_bytes,
         out),
    )  # fmt: skip


@inner
def prepare_rows(units, stage, rows, dtype, step):  # type: ignore[no-untyped-def]
    """Decode A."""
    call_at(units[Unit.PREPARE_ROWS], (stage, rows, dtype, step))


@inner
def prepare_columns(units, stage, columns, transposed, dtype, step):  # type: ignore[no-untyped-def]
    """Decode B."""
    call_at(units[Unit.PREPARE_COLUMNS], (stage, columns, transposed, dtype, step))


@inner
def multiply(units, stage, panel, rows, dtype, step):  # type: ignore[no-untyped-def]
    """Accumulate one panel."""
    call_at(units[Unit.MULTIPLY], (stage, panel, rows, dtype, step))


@inner
def copy_box(units, place, rank, coordinates, shared, size, offset, memory, ranges, direction, report):  # type: ignore[no-untyped-def]
    """Copy or add one box of a tensor."""
    return call_at(
        units[Unit.COPY_BOX],
        (place, rank, coordinates, shared, size, offset, memory, ranges, direction, report),
    )
