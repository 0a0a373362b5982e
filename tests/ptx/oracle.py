"""A second opinion on every lane instruction: one lane at a time, Python integers and fractions, from the ISA's text.

Contract: `answer(opcode, values)` gives the bit patterns that an instruction writes, `sequence(opcode, values)` those
of an Opcode of tests/golden/opcode_list, whose form may be a vector, a pair of predicates or a block. Both
raise NotImplementedError where nobody has written the semantics down, and where the ISA bounds an error instead of
naming a result; `oracle_approximations` is for those.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.golden.opcode_inputs import BITS

from . import oracle_floats, oracle_integers

if TYPE_CHECKING:
    from tests.golden.opcode_list import Opcode


def answer(opcode: str, values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the results of one instruction on one lane.

    Raises
    ------
    NotImplementedError
        The oracle does not know the instruction.
    """
    operation, *words = opcode.split(".")
    if operation in ("mov", "selp", "slct") and words[0] in ("f32", "f64"):
        opcode = ".".join([operation, "b64" if words[0] == "f64" else "b32", *words[1:]])
    for part in (oracle_floats, oracle_integers):
        results = part.answer(opcode, values)
        if results is not None:
            return results
    raise NotImplementedError(opcode)


def packed(kinds: tuple[str, ...], values: tuple[int, ...]) -> int:
    """Return the register of mov with a vector of operands, low part first."""
    result, at = 0, 0
    for kind, value in zip(kinds, values, strict=True):
        result |= value << at
        at += BITS[kind]
    return result


def unpacked(opcode: Opcode, value: int) -> tuple[int, ...]:
    """Return the parts of a register of mov with a vector of results, low part first; `_` in it drops one."""
    parts = []
    for name in re.findall(r"\{?(d\d|_)\b", opcode.form.split("}},")[0]):
        width = BITS[opcode.results[0]]
        if name != "_":
            parts.append(value & (1 << width) - 1)
        value >>= width
    return tuple(parts)


def sequence(opcode: Opcode, values: tuple[int, ...]) -> tuple[int, ...]:
    """Return what a program of tests/golden/opcode_program writes for one lane."""
    if opcode.label.startswith("vector"):
        if len(opcode.operands) > 1:
            return (packed(opcode.operands, values),)
        return unpacked(opcode, values[0])
    if opcode.label == "p|q":  # the second predicate is the complement, true of NaN
        first = answer(opcode.text, values)[0]
        return (first, 1 - first)
    if opcode.text == "lop3.b32":
        return answer(opcode.text, (*values, int(opcode.label, 16)))
    return answer(opcode.text, values)
