"""From gathered codes to accumulators: what wgmma, mma.sync and tcgen05.mma share.

Contract: the codes of A lie at LEFT_CODES of a stage, (rows, ROW_BYTES), those of B at RIGHT_WORDS in panels
(descriptors.gather_right). `prepare_rows` and `prepare_columns` decode them once; then `multiply` takes the
accumulators of one panel an instruction further. The arithmetic is `mma`'s, special values included. Arguments are
addresses and integers: a State passed down here took 16 us where the multiplication takes 4.
"""

from __future__ import annotations

from fa4verify.arithmetic.mma import Step
from fa4verify.arithmetic.mma_lanes import LANES
from fa4verify.arithmetic.mma_panel import Operands, accumulate_at
from fa4verify.arithmetic.operands import decode_right, prepare_left
from fa4verify.ptx.calls import by_address
from fa4verify.ptx.fragments import rows_of_slots, slots_of_rows
from fa4verify.ptx.inner import inner
from fa4verify.ptx.operations import MmaDtype
from fa4verify.ptx.raw import copy_bytes, load_i32, load_i64, load_u64, store_i64, store_u64
from fa4verify.ptx.stage import (
    ACCUMULATORS,
    LEFT_CODES,
    LEFT_EXPONENTS,
    LEFT_SCALES,
    LEFT_SOURCE,
    LEFT_VALUES,
    PANEL_BYTES,
    RIGHT_EXPONENTS,
    RIGHT_LARGEST,
    RIGHT_VALUES,
    RIGHT_WORDS,
    ROW_BYTES,
    SPARE,
    ZEROS,
)

_SLOT = 128  # bytes
_ROW = 4 * LANES


@inner
def code_bytes(dtype):  # type: ignore[no-untyped-def]
    """Bytes of a code; only 16- and 8-bit types are multiplied here."""
    return 2 if dtype <= MmaDtype.F16 else 1


@inner
def _step(address):  # type: ignore[no-untyped-def]
    """Read a Step from a row of State.steps."""
    return Step(
        load_i64(address), load_i64(address + 8), load_i64(address + 16), load_i64(address + 24), load_i64(address + 32)
    )


@by_address
def prepare_rows(stage, rows, dtype, step):  # type: ignore[no-untyped-def]
    """Decode `rows` rows of A; step: address of a row of State.steps."""
    k_step = load_i64(step)
    steps = ROW_BYTES // code_bytes(dtype) // k_step
    prepare_left(
        stage + LEFT_CODES, stage + LEFT_SOURCE, stage + LEFT_VALUES, stage + LEFT_EXPONENTS, stage + LEFT_SCALES,
        rows * steps, k_step, dtype,
    )  # fmt: skip
    return 0


@by_address
def prepare_columns(stage, columns, transposed, dtype, step):  # type: ignore[no-untyped-def]
    """Decode `columns` columns of B; transposed: its words are rows of codes of one k."""
    k_step = load_i64(step)
    steps = ROW_BYTES // code_bytes(dtype) // k_step
    for i in range((columns + LANES - 1) // LANES * steps):
        done = i * k_step * LANES
        largest = decode_right(
            stage + RIGHT_WORDS + done * code_bytes(dtype), stage + RIGHT_VALUES + 4 * done,
            stage + RIGHT_EXPONENTS + 4 * done, k_step, transposed, dtype,
        )  # fmt: skip
        store_i64(stage + RIGHT_LARGEST + 8 * i, largest)
    return 0


@by_address
def multiply(stage, panel, rows, dtype, step):  # type: ignore[no-untyped-def]
    """Add A . B of one panel to the accumulators (rows, LANES); rows: a multiple of 4."""
    length = ROW_BYTES // code_bytes(dtype)
    done = 4 * panel * length * LANES
    numbers = _step(step)
    operands = Operands(
        stage + LEFT_SOURCE, stage + LEFT_VALUES, stage + LEFT_EXPONENTS, stage + LEFT_SCALES,
        stage + RIGHT_VALUES + done, stage + RIGHT_EXPONENTS + done,
        stage + RIGHT_LARGEST + 8 * panel * (length // numbers.k_step), stage + ACCUMULATORS,
    )  # fmt: skip
    accumulate_at(operands, rows, length, numbers)
    return 0


@inner
def clear_last_panel(stage, columns):  # type: ignore[no-untyped-def]
    """Zero the words of the panel that `columns` columns fill in part; before they are gathered."""
    if columns % LANES:
        panel = stage + RIGHT_WORDS + columns // LANES * PANEL_BYTES
        for i in range(0, PANEL_BYTES, 8):
            store_u64(panel + i, 0)


@inner
def stage_fragments(stage, registers, pool):  # type: ignore[no-untyped-def]
    """Gather A's codes from the slots of 4 pool entries: rows l >> 2 and, of the second and fourth, 8 further.

    registers, pool: addresses of the warp's first slot and of the entries.
    """
    for i in range(4):
        slot = registers + _SLOT * load_i32(pool + 4 * i)
        to = stage + LEFT_CODES + (i & 1) * 8 * ROW_BYTES + (i >> 1) * 16
        for row in range(8):
            copy_bytes(to + row * ROW_BYTES, slot + 16 * row, 16)


@inner
def load_accumulators(stage, registers, pool, full):  # type: ignore[no-untyped-def]
    """Fill the accumulators (16, LANES) from the slots of a panel's 8 pool entries, or of 4 and zeros."""
    for half in range(2):
        a = registers + _SLOT * load_i32(pool + 8 * half)
        b = registers + _SLOT * load_i32(pool + 8 * half + 4)
        c = d = stage + ZEROS
        if full:
            c = registers + _SLOT * load_i32(pool + 16 + 8 * half)
            d = registers + _SLOT * load_i32(pool + 20 + 8 * half)
        rows_of_slots(a, b, c, d, stage + ACCUMULATORS + half * 8 * _ROW)


@inner
def store_accumulators(stage, registers, pool, full):  # type: ignore[no-untyped-def]
    """Write the accumulators back to where `load_accumulators` reads."""
    for half in range(2):
        a = registers + _SLOT * load_i32(pool + 8 * half)
        b = registers + _SLOT * load_i32(pool + 8 * half + 4)
        c = d = stage + SPARE
        if full:
            c = registers + _SLOT * load_i32(pool + 16 + 8 * half)
            d = registers + _SLOT * load_i32(pool + 20 + 8 * half)
        slots_of_rows(a, b, c, d, stage + ACCUMULATORS + half * 8 * _ROW)


@inner
def clear_accumulators(stage, rows):  # type: ignore[no-untyped-def]
    """Zero the accumulators (rows, LANES)."""
    for i in range(0, rows * _ROW, 8):
        store_u64(stage + ACCUMULATORS + i, 0)


@inner
def negate_rows(stage, rows, dtype):  # type: ignore[no-untyped-def]
    """Flip the sign of every code of A."""
    signs = 0x8000800080008000 if code_bytes(dtype) == 2 else 0x8080808080808080
    for i in range(0, rows * ROW_BYTES, 8):
        at = stage + LEFT_CODES + i
        store_u64(at, load_u64(at) ^ signs)
