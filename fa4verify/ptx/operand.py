"""What may stand where an instruction of PTX takes an operand.

Contract: names are resolved. A register carries the scope that declared it, so that two inline-assembly blocks that
call a register `p` mean two registers; equal registers compare equal.
"""

from __future__ import annotations

from dataclasses import dataclass

# Bits of every type that a register or a variable may have (PTX ISA, "Fundamental Types")
BITS = {
    "pred": 1,
    **{f"{letter}{bits}": bits for letter in "bus" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "f32": 32,
    "f32x2": 64,
    "tf32": 32,
    "f64": 64,
}


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register; scope 0 is the entry's body."""

    name: str
    kind: str
    scope: int

    @property
    def bits(self) -> int:
        """Width; 1 for a predicate."""
        return BITS[self.kind]


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal: `bits` 0 for an integer of no width, else the 32 or 64 bits of a `0f...` or `0d...` in `value`."""

    value: int
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A register of the machine: `%tid.x`, `%clock64`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A parameter, a variable, or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """`_`: a result that the program does not want."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: a value and a predicate, or two predicates."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, or with coordinates `[map, {x, y, ...}]`."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | None = None


Operand = Register | Negated | Immediate | Special | Symbol | Ignored | Vector | Pair | Address
