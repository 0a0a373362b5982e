"""One statement of PTX to rows: the tables of forms, and the lane operations of `lanes.LANES`.

Contract: a unit opcode is a pattern in one of the tables, a lane opcode a key of LANES; what is neither is Unsupported,
never guessed. `mov` and `cvta` are read here, because what they do depends on their operands.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fa4verify.ptx import forms_control, forms_matrix, forms_memory
from fa4verify.ptx.builder import flat
from fa4verify.ptx.errors import Unsupported
from fa4verify.ptx.form import exactly
from fa4verify.ptx.lanes import LANES
from fa4verify.ptx.operand import BITS, Register, Special, Vector
from fa4verify.ptx.operations import Column, Op

if TYPE_CHECKING:
    import re

    from fa4verify.ptx.builder import Builder
    from fa4verify.ptx.form import Form
    from fa4verify.ptx.module import Statement

FORMS = (*forms_control.FORMS, *forms_memory.FORMS, *forms_matrix.FORMS)
CLOCKS = {"%clock": 32, "%clock_hi": 32, "%clock64": 64, "%globaltimer": 64}
# An address in one window is the same number in the generic one: machine-wide, shared, parameter and local differ.
CONVERSIONS = tuple(
    f"cvta{to}.{space}.u64"
    for to in ("", ".to")
    for space in ("global", "shared", "shared::cta", "shared::cluster", "param", "param::entry", "local")
)
# max.f32 d, a, b, c (sm_100 and later) is the largest of three: neither order nor grouping shows in the result.
THREE_INPUTS = ("max.f32", "max.NaN.f32", "min.f32", "min.NaN.f32")
PARTIAL = Register("max or min of two", "f32", 0)


@cache
def form_of(opcode: str) -> tuple[Form, re.Match[str]] | None:
    """Return the form of a unit opcode and what its pattern matched, or None."""
    for form in FORMS:
        if match := form.pattern.fullmatch(opcode):
            return form, match
    return None


def read(b: Builder, statement: Statement) -> None:
    """Emit the rows of `statement`.

    Raises
    ------
    Unsupported
        Where the machine does not have the opcode, a modifier, a width or an operand.
    """
    b.begin(statement)
    opcode = statement.opcode
    if opcode.startswith("mov."):
        _move(b, statement)
    elif opcode in CONVERSIONS:
        result, operand = exactly(statement, 2)
        b.lane("mov.b64", (result,), (operand,))
    elif opcode in THREE_INPUTS and len(statement.operands) == 4:
        result, first, second, third = statement.operands
        b.lane(opcode, (PARTIAL,), (first, second))
        b.lane(opcode, (result,), (PARTIAL, third))
    elif opcode in LANES:
        results = flat(statement.operands[0]) if statement.operands else ()
        b.lane(opcode, results, statement.operands[1:])
    elif (found := form_of(opcode)) is not None:
        found[0].read(b, statement, found[1])
    else:
        raise Unsupported(_unknown(opcode))


def _move(b: Builder, statement: Statement) -> None:
    """Read a mov: of a value, of a clock, into or out of a vector."""
    kind = statement.opcode.removeprefix("mov.")
    if kind not in BITS or kind == "b128":
        raise Unsupported(_unknown(statement.opcode))
    result, operand = exactly(statement, 2)
    plain = "mov.pred" if kind == "pred" else f"mov.b{BITS[kind]}"
    if isinstance(operand, Special) and operand.name in CLOCKS:
        if CLOCKS[operand.name] != BITS[kind] or operand.name == "%clock_hi":
            raise Unsupported(f"{statement.opcode} of {operand.name}")
        b.emit(Op.CLOCK, {Column.D: b.write(result, kind), Column.F: BITS[kind] // 8})
        return
    if isinstance(result, Vector):
        plain += f".unpack{len(result.elements)}"
    elif isinstance(operand, Vector):
        plain += f".pack{len(operand.elements)}"
    if plain not in LANES:
        raise Unsupported(f"no {plain}")
    b.lane(plain, flat(result), flat(operand))


def _unknown(opcode: str) -> str:
    """Say what about `opcode` is not known: all of it, or one modifier, or only their combination."""
    stem, *modifiers = opcode.split(".")
    relatives = [one for one in LANES if one.split(".")[0] == stem]
    patterns = " ".join(form.pattern.pattern for form in FORMS)
    if not relatives and f"{stem}\\." not in patterns and stem not in ("mov", "ld", "st", "atom", "red", "bar"):
        return f"the machine has no instruction {stem} ({opcode})"
    known = {part for one in relatives for part in one.split(".")}
    strange = [f".{one}" for one in modifiers if relatives and one not in known]
    if strange:
        return f"{stem} has no modifier {' '.join(strange)} in this machine ({opcode})"
    return f"{stem} does not exist with these modifiers together in this machine ({opcode})"
