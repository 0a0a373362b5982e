"""A text as written: entries, their parameters, variables and statements, with every name resolved.

Contract: frozen. Nothing here says whether the machine can run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fa4verify.ptx.errors import Problem
    from fa4verify.ptx.operand import Negated, Operand, Register
    from fa4verify.ptx.tokens import Source


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter: its space, alignment and size in bytes; a size of 0 is `[]`, given at launch."""

    name: str
    space: str
    align: int
    size: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction; `target` is the index of the statement a branch goes to."""

    line: int
    text: str
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | Negated | None = None
    scope: int = 0
    target: int = -1


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel as written. `block` is `.reqntid`, None where the kernel does not fix it."""

    name: str
    parameters: tuple[Variable, ...]
    block: tuple[int, int, int] | None
    variables: tuple[Variable, ...]
    statements: tuple[Statement, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A text, its target and its entries; `variables` are those outside of entries."""

    source: Source
    target: str
    variables: tuple[Variable, ...]
    entries: tuple[Entry, ...]
