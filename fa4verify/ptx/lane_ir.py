"""Lane operations as LLVM vectors: 32 lanes an instruction, whatever the processor's own width.

Contract: an emission takes a `Lanes` and one vector an operand (of integers of the kind's width, floats or doubles;
predicates as a word of 32 bits) and returns one vector a result. Nothing here or in the tables has a poison or
undefined value for any input: shift counts are clamped before LLVM sees them. A float result that is NaN is the
device's one NaN, 0x7FFFFFFF, where `canonical` says so.
Why by hand: numba's loop vectoriser cannot know that a result's slot may be an operand's, and falls back to scalars.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fa4verify.ptx.lane import slots

LANES = 32
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
CANONICAL_NAN = 0x7FFFFFFF
SLOT_BYTES = 4 * LANES


def vector(element: Any, count: int = LANES) -> Any:
    """Type of a vector of 32 elements."""
    return ir.VectorType(element, count)


def bits(kind: str) -> int:
    """Bits of a kind; the digits of its name, twice for packed ones."""
    if kind == "pred":
        return LANES
    digits = kind.lstrip("abcdefghijklmnopqrstuvwyz")  # all but the x of f32x2
    return int(digits.split("x")[0]) * (2 if "x" in digits else 1)


def operand_type(kind: str) -> Any:
    """Type of the vector that an emission is given for an operand, or returns for a result."""
    special = {"f32": vector(FLOAT), "f64": vector(DOUBLE), "f32x2": vector(FLOAT, 2 * LANES), "pred": I32}
    return special.get(kind) or vector(ir.IntType(bits(kind)))


class Lanes:
    """An IR builder with what the tables need; every method returns a vector."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)

    def fill(self, like: Any, value: float) -> Any:
        """`value` in every element, of the type of `like` (a vector or a type)."""
        kind = getattr(like, "type", like)
        return ir.Constant(kind, [value] * kind.count)

    def call(self, name: str, *operands: Any, flags: tuple[Any, ...] = ()) -> Any:
        """Call an LLVM intrinsic of vectors of one type; `flags` are i1 operands that follow."""
        kind = operands[0].type
        letter = "f" if isinstance(kind.element, ir.FloatType | ir.DoubleType) else "i"
        width = {FLOAT: 32, DOUBLE: 64}.get(kind.element) or kind.element.width
        full = f"llvm.{name}.v{kind.count}{letter}{width}"
        signature = ir.FunctionType(kind, [x.type for x in (*operands, *flags)])
        function = self.builder.module.globals.get(full) or ir.Function(self.builder.module, signature, full)
        return self.builder.call(function, [*operands, *flags])

    def integers(self, x: Any) -> Any:
        """Reinterpret floats as integers."""
        width = 32 if x.type.element == FLOAT else 64
        return self.bitcast(x, vector(ir.IntType(width), x.type.count))

    def floats(self, x: Any) -> Any:
        """Reinterpret integers as floats."""
        return self.bitcast(x, vector(FLOAT if x.type.element.width == 32 else DOUBLE, x.type.count))

    def canonical(self, x: Any) -> Any:
        """Replace every NaN of floats by the device's."""
        nan = self.bitcast(self.fill(self.integers(x), CANONICAL_NAN), x.type)
        return self.select(self.fcmp_unordered("uno", x, x), nan, x)

    def word(self, truth: Any) -> Any:
        """32 truth values as a word."""
        return self.bitcast(truth, I32)

    def truth(self, word: Any) -> Any:
        """Reinterpret a word as 32 truth values."""
        return self.bitcast(word, vector(I1))

    def widen(self, x: Any, width: int, signed: bool) -> Any:
        """Extend, cut or keep integers."""
        have = x.type.element.width
        if have == width:
            return x
        kind = vector(ir.IntType(width), x.type.count)
        if have > width:
            return self.trunc(x, kind)
        return self.sext(x, kind) if signed else self.zext(x, kind)


class Slots:
    """A warp's registers and predicates, as a row of code names them."""

    def __init__(self, lanes: Lanes, registers: Any, predicates: Any) -> None:
        self.lanes, self.registers, self.predicates = lanes, registers, predicates

    def _at(self, slot: Any, kind: Any) -> Any:
        offset = self.lanes.mul(slot, I64(SLOT_BYTES))
        address = self.lanes.add(self.registers, offset)
        return self.lanes.inttoptr(address, kind.as_pointer())

    def _predicate_at(self, index: Any) -> Any:
        offset = self.lanes.mul(index, I64(4))
        return self.lanes.inttoptr(self.lanes.add(self.predicates, offset), I32.as_pointer())

    def read(self, kind: str, column: Any) -> Any:
        """Load an operand."""
        if kind == "pred":
            word = self.lanes.load(self._predicate_at(self.lanes.ashr(column, I64(1))))
            negated = self.lanes.sub(I32(0), self.lanes.trunc(self.lanes.and_(column, I64(1)), I32))
            return self.lanes.xor(word, negated)
        wanted = operand_type(kind)
        if kind == "f32" or slots(kind) == 2:
            return self.lanes.load(self._at(column, wanted), align=64)
        whole = self.lanes.load(self._at(column, vector(I32)), align=64)
        return self.lanes.widen(whole, bits(kind), signed=False)

    def stored(self, kind: str, value: Any) -> Any:
        """Return a result as it lies in a slot: 32 words, 32 words of 64 bits, or a predicate's word."""
        if kind == "pred":
            return value
        if slots(kind) == 2:
            return self.lanes.bitcast(value, vector(I64))
        if kind == "f32":
            return self.lanes.integers(value)
        return self.lanes.widen(value, 32, signed=False)

    def write(self, column: Any, value: Any, mask: Any) -> None:
        """Store what `stored` returned, in the lanes of a mask (a word)."""
        lanes = self.lanes
        if value.type == I32:
            place = self._predicate_at(column)
            kept = lanes.and_(lanes.load(place), lanes.not_(mask))
            lanes.store(lanes.or_(kept, lanes.and_(value, mask)), place)
            return
        place = self._at(column, value.type)
        lanes.store(lanes.select(lanes.truth(mask), value, lanes.load(place, align=64)), place, align=64)
