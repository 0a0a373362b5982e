"""ptxas' contraction of a product and a sum into one fused multiply-add, as a pass of its own.

Contract: `contract(program)` returns the program with each `mul.f32` that has one use, an `add.f32` or `sub.f32` of the
same block, merged into it: `fma.rn.f32`, `fms.rn.f32` (a * b - c) or `fnma.rn.f32` (c - a * b). `mul.rn.f32`,
`add.rn.f32` and `sub.rn.f32` ask for their own rounding and are left alone, as PTX demands ("Floating Point
Instructions": an instruction without a rounding modifier may be contracted).
The rule is no part of PTX but what ptxas does by default (-fmad=true).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from fa4verify.ptx.lanes import LANES
from fa4verify.ptx.operations import Column
from fa4verify.ptx.program import columns

if TYPE_CHECKING:
    from fa4verify.ptx.program import Instruction, Program

PRODUCT = "mul.f32"
SUMS = ("add.f32", "sub.f32")


def contract(program: Program) -> Program:
    """Merge products into sums as ptxas does."""
    uses = Counter(value for one in program.instructions for value in _operands(one))
    definitions = Counter(value for one in program.instructions for value in one.writes)
    kept: list[Instruction | None] = list(program.instructions)
    open_products: dict[int, int] = {}  # slot of a product that may still be merged -> its instruction
    for index, one in enumerate(program.instructions):
        if index in program.leaders:
            open_products.clear()
        if one.opcode in SUMS:
            merged = _merge(program, one, open_products)
            if merged is not None:
                kept[index], product = merged
                kept[product] = None
        for value in one.writes:
            open_products.pop(value, None)
            for slot in [s for s, at in open_products.items() if value in program.instructions[at].reads]:
                del open_products[slot]
        if one.opcode == PRODUCT and one.guard < 0:
            slot = one.column(Column.D)
            if uses[slot] == definitions[slot] == 1:
                open_products[slot] = index
        if one.ends_block:
            open_products.clear()
    return program.with_instructions(kept)


def _operands(one: Instruction) -> tuple[int, ...]:
    """Values read, each as often as it is an operand: a square of a product uses it twice."""
    if one.opcode in SUMS or one.opcode == PRODUCT:
        return one.column(Column.A), one.column(Column.B)
    return one.reads


def _merge(program: Program, one: Instruction, products: dict[int, int]) -> tuple[Instruction, int] | None:
    """Return the fused instruction for the sum `one`, and the product that it takes in."""
    left, right = one.column(Column.A), one.column(Column.B)
    taken = left if left in products else right if right in products else None
    if taken is None:
        return None
    index = products[taken]
    product = program.instructions[index]
    difference = "fms.rn.f32" if taken == left else "fnma.rn.f32"
    opcode = "fma.rn.f32" if one.opcode == "add.f32" else difference
    a, b, c = product.column(Column.A), product.column(Column.B), right if taken == left else left
    named = {Column.D: one.column(Column.D), Column.A: a, Column.B: b, Column.C: c}
    reads = (a, b, c, *((~(one.guard >> 1),) if one.guard >= 0 else ()))
    fused = replace(
        one, opcode=opcode, op=LANES[opcode].number, columns=columns(named), reads=tuple(dict.fromkeys(reads))
    )
    return fused, index
