"""What one line of the tables of forms is.

Contract: the pattern matches whole opcodes, every modifier that the machine knows and no other; `read` turns the
statement's operands into rows, and demands exactly the operands that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fa4verify.ptx.builder import Builder
from fa4verify.ptx.errors import Unsupported
from fa4verify.ptx.operand import Immediate, Operand
from fa4verify.ptx.syntax import Statement

Reader = Callable[[Builder, Statement, "re.Match[str]"], None]


@dataclass(frozen=True, slots=True)
class Form:
    """A pattern of opcodes and how their statements are read."""

    pattern: re.Pattern[str]
    read: Reader

    @classmethod
    def of(cls, pattern: str, read: Reader) -> Form:
        """Compile `pattern`; white space in it means nothing."""
        return cls(re.compile(pattern, re.VERBOSE), read)


def counted(statement: Statement, least: int, most: int | None = None) -> tuple[Operand | None, ...]:
    """Operands of a statement that has `least` to `most` of them, filled up with None."""
    most = least if most is None else most
    found = len(statement.operands)
    if not least <= found <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise Unsupported(f"{statement.opcode} takes {wanted} operands, not {found}")
    return (*statement.operands, *(None,) * (most - found))


def exactly(statement: Statement, count: int) -> tuple[Operand, ...]:
    """Operands of a statement that has `count` of them."""
    counted(statement, count)
    return statement.operands


def literal(operand: Operand | None, what: str) -> int:
    """Value of an operand that must be an integer literal."""
    if not isinstance(operand, Immediate) or operand.bits:
        raise Unsupported(f"{what} must be an integer literal")
    return operand.value


def all_lanes(operand: Operand | None) -> None:
    """Demand a membermask of all 32 lanes."""
    if not isinstance(operand, Immediate) or operand.value & 0xFFFFFFFF != 0xFFFFFFFF:
        raise Unsupported("supported only for the membermask of all 32 lanes, as a literal")
