"""What reading a program and running it agree on about one lane operation.

Contract: `lanes.LANES` maps an opcode, as PTX writes it (`add.s32`, `setp.ltu.f32`, `selp.f32`, `cvt.rn.bf16x2.f32`,
`and.pred`), to a Lane; opcodes that do the same may share a number. Forms that PTX writes with one opcode but that
differ have names of their own here (`VARIANTS`). An opcode that is not a key does not exist.
Kinds: b8 u8 s8 b16 u16 s16 f16 bf16 b32 u32 s32 f32 f16x2 bf16x2 b64 u64 s64 f64 f32x2 pred. 64-bit kinds take two
slots. An operand narrower than its slot is read from the low bits, whatever lies above; a result leaves zeros above,
also a signed one (reading adds a row that extends the sign where the register is wider). Results land in columns D, E;
operands come from columns A, B, C, F. A predicate result is an index; an operand is 2 * index + (1 where negated).
A result that the program ignores (`_`) lands in a slot (or predicate) that nobody reads: columns are always valid.
Predicate 0 is false and nobody writes it, so that 1 as an operand is true: the machine must start predicates at 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from fa4verify.ptx.operations import Column

RESULT_COLUMNS = (Column.D, Column.E)
OPERAND_COLUMNS = (Column.A, Column.B, Column.C, Column.F)

FALSE, TRUE = 0, 1  # predicate operands that never change

VARIANTS = {
    "mov.b64.pack2": "mov.b64 %rd, {%r_low, %r_high}: results b64; operands b32, b32",
    "mov.b64.unpack2": "mov.b64 {%r_low, %r_high}, %rd: results b32, b32; operands b64",
    "mov.b32.pack2": "mov.b32 %r, {%rs_low, %rs_high}: results b32; operands b16, b16",
    "mov.b32.unpack2": "mov.b32 {%rs_low, %rs_high}, %r: results b16, b16; operands b32",
    "mov.b64.pack4": "mov.b64 %rd, {%rs0, ... %rs3}: results b64; operands b16 four times",
    "mov.b16.pack2": "mov.b16 %rs, {%b_low, %b_high}: results b16; operands b8, b8",
    "fms.rn.f32": "what ptxas makes of mul.f32, sub.f32: a * b - c, rounded once; also .f32x2",
    "fnma.rn.f32": "what ptxas makes of sub.f32 of a mul.f32: c - a * b, rounded once; also .f32x2",
}


@dataclass(frozen=True, slots=True)
class Lane:
    """Number below `FIRST_UNIT`, and the kinds of results and operands."""

    number: int
    results: tuple[str, ...]
    operands: tuple[str, ...]


def slots(kind: str) -> int:
    """Slots that a value of `kind` takes."""
    return 2 if kind in ("b64", "u64", "s64", "f64", "f32x2") else 1
