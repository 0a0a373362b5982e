"""Operands to slots, statements to rows: what the tables of forms write with.

Contract: `read`, `write` and their kin turn an operand into what a column holds, check its width, and note the value;
`emit` makes the row of them. What does not fit is Unsupported with the reason. Rows that a statement needs beside its
own (an address computed first, a sign extended afterwards) are emitted in order, each under the statement's line.
Widths: an operand has the bits of its kind, except where PTX lets a register be wider (cvt, ld, st: PTX ISA, "Operand
Size Exceeding Instruction-Type Size").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fa4verify.ptx.errors import Problem, Unsupported
from fa4verify.ptx.lane import FALSE, OPERAND_COLUMNS, RESULT_COLUMNS, TRUE, slots
from fa4verify.ptx.lanes import LANES
from fa4verify.ptx.operand import (
    BITS,
    Address,
    Ignored,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from fa4verify.ptx.operations import FIRST_UNIT, LOCAL_BASE, PARAMETER_BASE, Column
from fa4verify.ptx.program import Instruction, columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fa4verify.ptx.syntax import Statement

SHARED_WINDOW = "%shared_base"  # a special register of ours: the CTA's rank in its cluster << RANK_SHIFT

_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
SPECIALS = frozenset(
    (
        *(f"%{name}.{axis}" for name in _AXES for axis in "xyz"),
        *(
            f"%{name}"
            for name in ("laneid", "warpid", "nwarpid", "smid", "nsmid", "cluster_ctarank", "cluster_nctarank")
        ),
        *(f"%lanemask_{which}" for which in ("eq", "lt", "le", "gt", "ge")),
        "%dynamic_smem_size",
        "%total_smem_size",
        SHARED_WINDOW,
    )
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a variable or parameter lies: `param`, `shared` or `local`, and its offset and size in bytes."""

    space: str
    offset: int
    size: int


@dataclass(slots=True)
class Builder:
    """Rows so far, and the slots, predicates and constants that they use."""

    places: Mapping[str, Place]
    instructions: list[Instruction] = field(default_factory=list)
    pool: list[int] = field(default_factory=list)
    slots: int = 0
    registers: dict[Register | str, int] = field(default_factory=dict)  # with sinks and temporaries, by their names
    predicates: dict[Register | str, int] = field(default_factory=lambda: {"false": 0})
    constants: dict[tuple[int, int], int] = field(default_factory=dict)
    specials: dict[str, int] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)  # values that an instruction leaves undefined, and why
    statement: Statement | None = None
    guard: int = -1
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)

    # Rows

    def begin(self, statement: Statement) -> None:
        """Start a statement: its guard is the guard of every row that belongs to it."""
        self.statement, self.guard = statement, -1
        self.reads, self.writes = [], []
        if statement.guard is not None:
            self.guard = self.predicate(statement.guard)
            self.reads.clear()

    def emit(self, op: int, named: Mapping[Column, int] | None = None, *, immediate: int = 0, target: int = -1) -> None:
        """Make the row of what was read and written since the last one."""
        self._row(op, named or {}, tuple(self.reads), tuple(self.writes), immediate=immediate, target=target)
        self.reads, self.writes = [], []

    def _row(
        self,
        op: int,
        named: Mapping[Column, int],
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        *,
        opcode: str = "",
        immediate: int = 0,
        target: int = -1,
    ) -> None:
        assert self.statement is not None
        if self.guard >= 0:
            reads = (*reads, ~(self.guard >> 1))
        self.instructions.append(
            Instruction(
                opcode=opcode or self.statement.opcode,
                op=op,
                columns=columns(named),
                line=self.statement.line,
                immediate=immediate,
                guard=self.guard,
                target=target,
                reads=tuple(dict.fromkeys(reads)),
                writes=writes,
            )
        )

    def helper(self, opcode: str, result: int, *operands: int) -> int:
        """Emit a lane operation that the program does not spell out, and return the slot of its result."""
        named = {Column.D: result, **dict(zip(OPERAND_COLUMNS, operands, strict=False))}
        self._row(LANES[opcode].number, named, operands, (result,), opcode=f"({opcode})")
        return result

    # Slots

    def _allot(self, key: Register | str, count: int) -> int:
        if key not in self.registers:
            self.registers[key] = self.slots
            self.slots += count
        return self.registers[key]

    def slot(self, register: Register) -> int:
        """Return the slot of a register that holds a value, not a predicate."""
        if register.kind == "pred":
            raise Unsupported(f"{register.name} is a predicate, expected a value")
        if register.bits > 64:
            raise Unsupported(f"{register.name} has {register.bits} bits, the machine's registers at most 64")
        return self._allot(register, slots(f"b{register.bits}"))

    def constant(self, value: int, kind: str) -> int:
        """Return the slot of a constant of `kind`."""
        bits = BITS[kind]
        if not -(1 << (bits - 1)) <= value < 1 << bits:
            raise Unsupported(f"{value:#x} does not fit into {bits} bits")
        key = (value & ((1 << bits) - 1), slots(kind))
        if key not in self.constants:
            self.constants[key] = self.slots
            self.slots += key[1]
        return self.constants[key]

    def special(self, name: str) -> int:
        """Return the slot of a special register; all have 32 bits."""
        if name not in SPECIALS:
            raise Unsupported(f"{name} is no register that is declared here, and none of the machine's")
        if name not in self.specials:
            self.specials[name] = self.slots
            self.slots += 1
        return self.specials[name]

    def listed(self, entries: list[int]) -> int:
        """Put slots into the pool and return the index of the first."""
        self.pool.extend(entries)
        return len(self.pool) - len(entries)

    # Operands

    def read(self, operand: Operand, kind: str = "b32", *, wider: bool = False) -> int:
        """Slot of an operand of `kind`; `wider` lets a register have more bits, in as many slots."""
        match operand:
            case Register():
                self._fits(operand, kind, wider)
                slot = self.slot(operand)
            case Immediate(value, bits):
                if bits and bits != BITS[kind]:
                    raise Unsupported(f"a literal of {bits} bits where {kind} is expected")
                if not bits and kind in ("f32", "f64", "f32x2"):
                    raise Unsupported(f"an integer literal where {kind} is expected")
                return self.constant(value, kind)
            case Special(name):
                if BITS[kind] != 32:
                    raise Unsupported(f"{name} has 32 bits, {kind} is expected")
                return self.special(name)
            case Symbol(name):
                slot = self._address_of(name, kind)
            case _:
                raise Unsupported(f"expected a value of {kind}, found a {type(operand).__name__.lower()}")
        self.reads.append(slot)
        return slot

    def write(self, operand: Operand, kind: str = "b32", *, wider: bool = False) -> int:
        """Slot of a result of `kind`; one that is ignored goes where nobody reads."""
        if isinstance(operand, Ignored):
            return self._allot(f"sink{slots(kind)}", slots(kind))
        if not isinstance(operand, Register):
            raise Unsupported(f"a result must be a register, found a {type(operand).__name__.lower()}")
        self._fits(operand, kind, wider)
        slot = self.slot(operand)
        self.writes.append(slot)
        return slot

    def discard(self, operand: Operand, why: str) -> None:
        """Note a result that the machine does not compute; reading it is a problem."""
        if isinstance(operand, Register):
            self.unreadable[self.slot(operand)] = why

    def predicate(self, operand: Operand) -> int:
        """Return 2 * index of a predicate that is read + (1 where it is negated)."""
        match operand:
            case Negated(register):
                return self.predicate_index(register) * 2 + 1
            case Immediate(value):
                return TRUE if value else FALSE
            case _:
                return self.predicate_index(operand) * 2

    def predicate_index(self, operand: Operand) -> int:
        """Index of a predicate that is read and not negated."""
        index = self._predicate(operand)
        self.reads.append(~index)
        return index

    def write_predicate(self, operand: Operand) -> int:
        """Index of a predicate that is written."""
        if isinstance(operand, Ignored):
            return self.predicates.setdefault("sink", len(self.predicates))
        index = self._predicate(operand)
        self.writes.append(~index)
        return index

    def _predicate(self, operand: Operand) -> int:
        if not isinstance(operand, Register) or operand.kind != "pred":
            raise Unsupported(f"expected a predicate, found {getattr(operand, 'name', operand)}")
        return self.predicates.setdefault(operand, len(self.predicates))

    @staticmethod
    def _fits(register: Register, kind: str, wider: bool) -> None:
        bits = BITS[kind]
        if register.bits == bits or (wider and register.kind != "pred" and register.bits > bits):
            return
        raise Unsupported(f"{register.name} is .{register.kind}, expected {bits} bits ({kind})")

    # Addresses

    def _address_of(self, name: str, kind: str) -> int:
        """Slot that holds a variable's address."""
        place = self._place(name)
        if place.space == "shared":
            low = self._allot(f"&{name}", 1)
            self.helper("add.s32", low, self.special(SHARED_WINDOW), self.constant(place.offset, "b32"))
            if BITS[kind] == 64:
                return self.helper("cvt.u64.u32", self._allot(f"&{name}.64", 2), low)
            base = low
        else:
            base = self.constant((PARAMETER_BASE if place.space == "param" else LOCAL_BASE) + place.offset, "b64")
        if BITS[kind] != (32 if place.space == "shared" else 64):
            raise Unsupported(f"the address of {name} does not have {BITS[kind]} bits")
        return base

    def _place(self, name: str) -> Place:
        if name not in self.places:
            raise Unsupported(f"no variable or parameter {name}")
        return self.places[name]

    def address(self, operand: Operand, space: str) -> tuple[int, int]:
        """Slot and offset of an address in `space` (`param`: slot -1 for one that is known)."""
        if not isinstance(operand, Address) or operand.coordinates is not None:
            raise Unsupported(f"expected an address in {space}")
        base = operand.base
        if isinstance(base, Symbol):
            place = self._place(base.name)
            if place.space != space:
                raise Unsupported(f"{base.name} lies in .{place.space}, not in .{space}")
            at = place.offset + operand.offset
            if space == "param":
                return -1, at
            if space == "shared":
                return self.special(SHARED_WINDOW), at
            return self.constant(LOCAL_BASE, "b64"), at
        if space != "shared":
            return self.read(base, "b64"), operand.offset
        if isinstance(base, Register) and base.bits == 64:
            slot = self.helper("cvt.u32.u64", self._allot(f"low half of {base.name}@{base.scope}", 1), self.slot(base))
            self.reads.append(slot)
            return slot, operand.offset
        return self.read(base, "b32"), operand.offset

    def settled(self, operand: Operand, space: str) -> int:
        """Slot of an address that has no column for its offset: a row adds it where it is not 0."""
        slot, offset = self.address(operand, space)
        if offset == 0:
            return slot
        kind = "b32" if space == "shared" else "b64"
        total = self._allot(f"{slot}+{offset}", slots(kind))
        self.reads.remove(slot)
        self.helper("add.s32" if kind == "b32" else "add.s64", total, slot, self.constant(offset, kind))
        self.reads.append(total)
        return total

    # Lane operations

    def lane(self, opcode: str, results: tuple[Operand, ...], operands: tuple[Operand, ...]) -> None:
        """Emit the lane operation `opcode` on the statement's operands."""
        known = LANES[opcode]
        if len(results) != len(known.results) or len(operands) != len(known.operands):
            raise Unsupported(
                f"{opcode} takes {len(known.results)} results and {len(known.operands)} operands, "
                f"not {len(results)} and {len(operands)}"
            )
        wider = opcode.startswith("cvt.")
        named: dict[Column, int] = {}
        for column, operand, kind in zip(OPERAND_COLUMNS, operands, known.operands, strict=False):
            if kind == "pred":
                named[column] = self.predicate(operand)
            else:
                named[column] = self.read(operand, kind, wider=wider and slots(kind) == 1)
                if wider and isinstance(operand, Register) and operand.bits == 64 and BITS[kind] < 64:
                    raise Unsupported(f"{operand.name} has 64 bits, {opcode} takes at most 32")
        for column, operand, kind in zip(RESULT_COLUMNS, results, known.results, strict=False):
            if kind == "pred":
                named[column] = self.write_predicate(operand)
            else:
                named[column] = self.write(operand, kind, wider=wider)
        assert known.number < FIRST_UNIT
        self.emit(known.number, named)
        if wider and isinstance(results[0], Register):
            self._extend(opcode, results[0], BITS[known.results[0]])

    def _extend(self, opcode: str, register: Register, bits: int) -> None:
        """Carry the sign, or zeros, of a conversion's result into a register that is wider."""
        kind = opcode.split(".")[-2]
        if register.bits == bits or (register.bits <= 32 and kind[0] != "s"):
            return
        if kind[0] not in "su":
            raise Unsupported(f"{register.name} is wider than the result of {opcode}")
        slot = self.slot(register)
        self.helper(f"cvt.{kind[0]}{register.bits}.{kind}", slot, slot)

    def problems(self) -> list[Problem]:
        """Problems that only the whole program shows."""
        return [
            Problem(one.line, one.opcode, f"reads what the machine does not compute: {self.unreadable[value]}")
            for one in self.instructions
            for value in one.reads
            if value in self.unreadable
        ]


def flat(operand: Operand) -> tuple[Operand, ...]:
    """Elements of a vector or pair, or the operand itself."""
    match operand:
        case Vector(elements):
            return elements
        case Pair(first, second):
            return first, second
        case _:
            return (operand,)
