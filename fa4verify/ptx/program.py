"""A kernel as the machine will run it, one instruction a row, before it becomes an array.

Contract: frozen; passes (`contraction`) make a new Program from one. A *value* is what an instruction reads or writes:
the first slot of a register, or `~p` for predicate p. `reads` and `writes` are complete for registers and predicates:
what a matrix instruction takes from a list in the pool is in them too. Memory is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.ptx.operations import COLUMNS, Column, Op
from fa4verify.ptx.state import POISON_REGISTER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from fa4verify.ptx.tokens import Source

OPERANDS = (Column.D, Column.A, Column.B, Column.C, Column.E, Column.F, Column.G)
LANES = 32


@dataclass(frozen=True, slots=True)
class Parameter:
    """Where a kernel parameter lies in the parameter block, in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """A row of code; `target` is the index of the instruction that a branch goes to."""

    opcode: str  # as PTX writes it; `(add.s32)` for a row that the program does not spell out
    op: int
    columns: tuple[int, ...]  # of OPERANDS, -1 where absent
    line: int
    immediate: int = 0
    guard: int = -1
    target: int = -1
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()

    def column(self, column: Column) -> int:
        """Entry of one of OPERANDS."""
        return self.columns[OPERANDS.index(column)]

    @property
    def ends_block(self) -> bool:
        """Whether what follows may not be what runs next."""
        return self.op in (Op.BRANCH, Op.EXIT, Op.TRAP)


def columns(named: Mapping[Column, int]) -> tuple[int, ...]:
    """Columns of OPERANDS from the named ones."""
    return tuple(named.get(column, -1) for column in OPERANDS)


@dataclass(frozen=True)
class Program:
    """Instructions, and what their slots and predicates hold before the first of them."""

    name: str
    target: str  # `.target` of the text, sm_90a
    block: tuple[int, int, int]
    parameters: tuple[Parameter, ...]
    instructions: tuple[Instruction, ...]
    pool: tuple[int, ...]
    slots: int
    constants: Mapping[int, tuple[int, int]]  # slot -> value, slots it takes
    specials: Mapping[str, int]  # `%tid.x` -> slot; `%shared_base` is the CTA's rank << RANK_SHIFT
    names: Mapping[int, str]  # value -> name of its register
    predicates: int
    static_shared: int
    local_bytes: int
    source: Source = field(repr=False)

    @cached_property
    def leaders(self) -> frozenset[int]:
        """Indices of instructions that some branch goes to."""
        return frozenset(one.target for one in self.instructions if one.target >= 0)

    def with_rows(self, rows: Sequence[tuple[Instruction, ...]], slots: int = 0) -> Program:
        """Return the program with none, one or several rows for each of its own, and more slots; branches follow."""
        moved, count = [], 0
        for some in rows:
            moved.append(count)
            count += len(some)
        relinked = (replace(one, target=moved[one.target]) if one.target >= 0 else one for some in rows for one in some)
        return replace(self, instructions=tuple(relinked), slots=self.slots + slots)

    def code(self) -> npt.NDArray[np.int64]:
        """Rows of code, [instructions, COLUMNS]."""
        code = np.full((len(self.instructions), COLUMNS), -1, np.int64)
        for row, one in zip(code, self.instructions, strict=True):
            row[Column.OP], row[Column.GUARD], row[Column.LINE] = one.op, one.guard, one.line
            row[list(OPERANDS)] = one.columns
            row[Column.IMM] = one.target if one.target >= 0 else one.immediate
        return code

    def image(self) -> npt.NDArray[np.uint32]:
        """Slots of a warp before its first instruction, [slots, 32]: constants, lane numbers, and poison."""
        image = np.full((self.slots, LANES), POISON_REGISTER, np.uint32)
        for slot, (value, wide) in self.constants.items():
            if wide == 2:
                image[slot : slot + 2].reshape(-1).view(np.uint64)[:] = value
            else:
                image[slot] = value
        lanes = np.arange(LANES, dtype=np.uint64)
        one = np.uint64(1)
        fixed = {
            "%laneid": lanes,
            "%lanemask_eq": one << lanes,
            "%lanemask_lt": (one << lanes) - one,
            "%lanemask_le": (one << (lanes + one)) - one,
            "%lanemask_gt": ~((one << (lanes + one)) - one),
            "%lanemask_ge": ~((one << lanes) - one),
            **{f"%ntid.{axis}": np.full(LANES, size, np.uint64) for axis, size in zip("xyz", self.block, strict=True)},
        }
        for name, values in fixed.items():
            if name in self.specials:
                image[self.specials[name]] = values.astype(np.uint32)
        return image
