"""ptxas' contraction of products and sums into fused multiply-adds, as a pass of its own.

PTX lets an assembler contract `mul` and `add` or `sub` that name no rounding; what ptxas makes of that (its default,
-fmad=true) is no part of PTX, so the rule here was found by experiment: the SASS of hand-written programs and of FA4's
kernels (ptxas 13.4, November 2026; tests/ptx/contraction_cases.py holds the programs and what became of them).

Contract: a product may be fused if it is not guarded and every one of its uses is a sum that takes it once, wherever in
the program. Sums are visited block by block, what falls through before what is branched to. Of a sum of two products
that may be fused, the one with fewer uses is, the left one of a tie; the other becomes the addend, which is a use that
cannot be fused, so that its later sums stay sums. A product is duplicated into all of its sums; it stays only where it
is an addend as well. Results: `fma.rn`, `fms.rn` (a * b - c), `fnma.rn` (c - a * b), of f32 and f32x2.

Where it would be wrong: a product that reaches a sum through `neg` or a pair of `mov.b64 {..}` that undo each other
(ptxas looks through both; FA4's kernels have neither); two products of the same operands (ptxas makes them one first).
A product that is negated before a sum is a PtxError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fa4verify.ptx.dataflow import Dataflow
from fa4verify.ptx.errors import Problem, PtxError
from fa4verify.ptx.lane import slots
from fa4verify.ptx.lanes import LANES
from fa4verify.ptx.operations import Column
from fa4verify.ptx.program import columns

if TYPE_CHECKING:
    from fa4verify.ptx.program import Instruction, Program

KINDS = {"mul.f32": "f32", "mul.ftz.f32": "ftz.f32", "mul.f32x2": "f32x2"}  # of products, by opcode


def contract(program: Program) -> Program:
    """Fuse products and sums as ptxas does.

    Raises
    ------
    PtxError
        Where the result needs an operation that the machine lacks.
    """
    return _Contraction(program).result()


@dataclass(slots=True)
class _Product:
    """A product: where it is, its kind, how many uses the text has, and those that are still to be fused."""

    index: int
    kind: str
    uses: int
    sums: set[int]
    blocked: bool = False  # some use can never be fused


class _Contraction:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = Dataflow(program)
        self.products: dict[int, _Product] = {}  # by the product's instruction
        self.operand: dict[tuple[int, int], int] = {}  # (sum, slot) -> product that the slot holds there
        self.rows: list[tuple[Instruction, ...]] = [(one,) for one in program.instructions]
        self.fused: set[int] = set()  # products that some sum has taken in
        self.kept: set[int] = set()  # products that are an addend somewhere
        self.saved: dict[tuple[int, int], int] = {}  # (product, slot of an operand) -> slot that keeps it
        self.slots = 0

    def result(self) -> Program:
        for index, one in enumerate(self.program.instructions):
            if one.opcode in KINDS and one.guard < 0 and index in self.flow.live:
                self._enter(index, KINDS[one.opcode])
        for block in self.flow.order:
            for index in self.flow.blocks[block]:
                if (product := self._choice(index)) is not None:
                    self._fuse(index, product)
        for index in self.fused:
            copies = tuple(self._copy(index, slot) for product, slot in self.saved if product == index)
            self.rows[index] = (*copies, *(self.rows[index] if index in self.kept else ()))
        return self.program.with_rows(self.rows, self.slots)

    # Which

    def _enter(self, index: int, kind: str) -> None:
        """Find the uses of a product; whatever it is not alone to define there blocks it."""
        value = self.program.instructions[index].column(Column.D)
        alone = len(self.flow.definitions[value]) == 1
        product = _Product(index, kind, 0, set())
        for use in self.flow.uses.get(value, ()):
            reaching = frozenset((index,)) if alone else self.flow.reaching(use, value)
            if index not in reaching or use not in self.flow.live:
                continue
            one = self.program.instructions[use]
            product.uses += 1
            if reaching != {index} or not self._is_sum(one, kind) or one.column(Column.A) == one.column(Column.B):
                product.blocked = True
                if one.opcode == "neg.f32" and kind == "f32":
                    self._refuse_negation(use)
                continue
            product.sums.add(use)
            self.operand[use, value] = index
        self.products[index] = product

    @staticmethod
    def _is_sum(one: Instruction, kind: str) -> bool:
        return one.opcode in (f"add.{kind}", f"sub.{kind}")

    def _refuse_negation(self, index: int) -> None:
        """Refuse a negated product that may be part of a sum, which ptxas would fuse."""
        one = self.program.instructions[index]
        for use in self.flow.uses.get(one.column(Column.D), ()):
            if self._is_sum(self.program.instructions[use], "f32"):
                reason = "a product, negated, then added: the contraction that ptxas makes of it is not supported"
                raise PtxError((Problem(one.line, self.program.source.text_of(one.line), reason),), self.program.name)

    def _sides(self, index: int) -> list[_Product]:
        """Products that the sum `index` adds, the left one first."""
        one = self.program.instructions[index]
        found = (self.operand.get((index, one.column(column))) for column in (Column.A, Column.B))
        return [self.products[product] for product in found if product is not None]

    def _may_be_fused(self, product: _Product) -> bool:
        """Whether every sum that is left would take this product, and not one that has fewer uses."""
        if product.blocked or product.index in self.kept:
            return False
        for index in product.sums:
            for other in self._sides(index):
                if other.uses < product.uses and self._may_be_fused(other):
                    return False
        return True

    def _choice(self, index: int) -> _Product | None:
        """Return the product that the sum `index` takes in, if any."""
        return next((product for product in self._sides(index) if self._may_be_fused(product)), None)

    # How

    def _fuse(self, index: int, product: _Product) -> None:
        one = self.program.instructions[index]
        of = self.program.instructions[product.index]
        taken = of.column(Column.D)
        left, right = one.column(Column.A), one.column(Column.B)
        addend = right if taken == left else left
        difference = "fms.rn" if taken == left else "fnma.rn"
        opcode = f"{'fma.rn' if one.opcode.startswith('add') else difference}.{product.kind}"
        if opcode not in LANES:
            reason = f"ptxas contracts this sum to {opcode}, which the machine does not have"
            raise PtxError((Problem(one.line, self.program.source.text_of(one.line), reason),), self.program.name)
        a, b = (self._stable(product.index, index, of.column(column)) for column in (Column.A, Column.B))
        named = {Column.D: one.column(Column.D), Column.A: a, Column.B: b, Column.C: addend}
        guard = (~(one.guard >> 1),) if one.guard >= 0 else ()
        reads = tuple(dict.fromkeys((a, b, addend, *guard)))
        fused = replace(one, opcode=opcode, op=LANES[opcode].number, columns=columns(named), reads=reads)
        self.rows[index] = (fused,)
        self.fused.add(product.index)
        product.sums.discard(index)
        for other in self._sides(index):
            if other is not product:
                self.kept.add(other.index)

    def _stable(self, product: int, index: int, slot: int) -> int:
        """Slot that holds at `index` what `slot` held at the product; a copy where the program overwrites it."""
        definitions = self.flow.definitions.get(slot, ())
        if len(definitions) <= 1:
            return slot
        same_block = self.flow.block_of[product] == self.flow.block_of[index] and product < index
        if same_block and not any(product <= at < index for at in definitions):
            return slot
        if (product, slot) not in self.saved:
            self.saved[product, slot] = self.program.slots + self.slots
            self.slots += slots(self.products[product].kind)
        return self.saved[product, slot]

    def _copy(self, product: int, slot: int) -> Instruction:
        """Make the row that keeps an operand of a product for its sums."""
        opcode = f"mov.b{32 * slots(self.products[product].kind)}"
        into = self.saved[product, slot]
        named = columns({Column.D: into, Column.A: slot})
        of = self.program.instructions[product]
        return replace(
            of, opcode=f"({opcode})", op=LANES[opcode].number, columns=named, reads=(slot,), writes=(into,), target=-1
        )
