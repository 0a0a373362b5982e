"""Who defines and who uses what: a view of a Program for passes and audits.

Contract: instructions by index, values as in `program.py`. Blocks end after a branch, an exit or a trap and before a
branch's target; a guarded branch or exit falls through as well. `reaching` follows every path, also those that no
thread can take; what a guarded instruction writes may come from it or from before.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fa4verify.ptx.operations import FIRST_UNIT, Op

if TYPE_CHECKING:
    from fa4verify.ptx.program import Instruction, Program


class Dataflow:
    """Definitions, uses, blocks and their order.

    Parameters
    ----------
    program : Program
        What is looked at; never changed.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def definitions(self) -> dict[int, list[int]]:
        """Value -> instructions that write it."""
        found: dict[int, list[int]] = {}
        for index, one in enumerate(self.program.instructions):
            for value in one.writes:
                found.setdefault(value, []).append(index)
        return found

    @cached_property
    def uses(self) -> dict[int, list[int]]:
        """Value -> instructions that read it."""
        found: dict[int, list[int]] = {}
        for index, one in enumerate(self.program.instructions):
            for value in one.reads:
                found.setdefault(value, []).append(index)
        return found

    @cached_property
    def blocks(self) -> tuple[range, ...]:
        """Instructions that run one after another, in the order of the text."""
        instructions = self.program.instructions
        starts = {0, *self.program.leaders}
        starts |= {index + 1 for index, one in enumerate(instructions) if one.ends_block}
        bounds = sorted(start for start in starts if start < len(instructions))
        return tuple(map(range, bounds, [*bounds[1:], len(instructions)]))

    @cached_property
    def block_of(self) -> tuple[int, ...]:
        """Block of every instruction."""
        return tuple(number for number, block in enumerate(self.blocks) for _ in block)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Block -> blocks that may run next: the one that follows first, then the target of a branch."""
        following = []
        for number, block in enumerate(self.blocks):
            last = self.program.instructions[block[-1]]
            falls = number + 1 < len(self.blocks) and (not last.ends_block or last.guard >= 0)
            next_ones = [number + 1] if falls else []
            if last.op == Op.BRANCH:
                next_ones.append(self.block_of[last.target])
            following.append(tuple(next_ones))
        return tuple(following)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Block -> blocks that may have run before."""
        found: list[list[int]] = [[] for _ in self.blocks]
        for number, following in enumerate(self.successors):
            for successor in following:
                found[successor].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Blocks in reverse postorder, what falls through before what is branched to; unreachable ones last."""
        seen, finished = {0}, []
        open_blocks = [(0, list(self.successors[0]))]
        while open_blocks:
            block, left = open_blocks[-1]
            if left:
                successor = left.pop()  # the branch's target first: it ends up behind what falls through
                if successor not in seen:
                    seen.add(successor)
                    open_blocks.append((successor, list(self.successors[successor])))
            else:
                finished.append(block)
                open_blocks.pop()
        return (*reversed(finished), *(block for block in range(len(self.blocks)) if block not in seen))

    @cached_property
    def live(self) -> frozenset[int]:
        """Instructions that have an effect, or whose result one of them needs."""
        instructions = self.program.instructions
        wanted = [index for index, one in enumerate(instructions) if one.op >= FIRST_UNIT]
        live = set(wanted)
        while wanted:
            for value in instructions[wanted.pop()].reads:
                for index in self.definitions.get(value, ()):
                    if index not in live:
                        live.add(index)
                        wanted.append(index)
        return frozenset(live)

    def reaching(self, index: int, value: int) -> frozenset[int]:
        """Return the instructions whose `value` may be what instruction `index` reads; -1 stands for the start."""
        found: set[int] = set()
        block = self.block_of[index]
        waiting = [(block, index)]
        seen: set[int] = set()
        while waiting:
            block, end = waiting.pop()
            for at in range(end - 1, self.blocks[block].start - 1, -1):
                if value in self._instruction(at).writes:
                    found.add(at)
                    if self._instruction(at).guard < 0:
                        break
            else:
                if block == 0:
                    found.add(-1)
                for before in self.predecessors[block]:
                    if before not in seen:
                        seen.add(before)
                        waiting.append((before, self.blocks[before].stop))
        return frozenset(found)

    def _instruction(self, index: int) -> Instruction:
        return self.program.instructions[index]
