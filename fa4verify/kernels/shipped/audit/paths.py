"""Which of several definitions of a register may reach a statement, over the branches of an entry.

Contract: every path counts, also those that no thread can take; what a guarded statement writes may come from it or
from before. Statement-level twin of `fa4verify.ptx.dataflow`, which needs an entry that the machine can run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fa4verify.ptx.module import Entry
    from fa4verify.ptx.operand import Register

_ENDS = ("bra", "exit", "ret", "trap")


class Paths:
    """Blocks of an entry and what runs before each."""

    def __init__(self, entry: Entry) -> None:
        self._statements = entry.statements
        self._known: dict[tuple[int, Register], tuple[int, ...]] = {}

    @cached_property
    def _starts(self) -> list[int]:
        starts = {0}
        for index, one in enumerate(self._statements):
            if one.target >= 0:
                starts.add(one.target)
            if one.opcode.split(".")[0] in _ENDS:
                starts.add(index + 1)
        return sorted(start for start in starts if start < len(self._statements))

    def _block(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    @cached_property
    def _before(self) -> list[list[int]]:
        """Blocks that may run before each block."""
        found: list[list[int]] = [[] for _ in self._starts]
        for block, _ in enumerate(self._starts):
            end = self._starts[block + 1] if block + 1 < len(self._starts) else len(self._statements)
            last = self._statements[end - 1]
            if block + 1 < len(self._starts) and (last.opcode.split(".")[0] not in _ENDS or last.guard is not None):
                found[block + 1].append(block)
            if last.target >= 0:
                found[self._block(last.target)].append(block)
        return found

    def reaching(self, at: int, register: Register, defined: Iterable[int]) -> tuple[int, ...]:
        """Return which of the statements `defined`, all writing `register`, may be what statement `at` reads."""
        key = at, register
        if key not in self._known:
            self._known[key] = tuple(sorted(self._search(at, sorted(defined))))
        return self._known[key]

    def _search(self, at: int, defined: list[int]) -> set[int]:
        found: set[int] = set()
        waiting = [(self._block(at), at)]
        seen: set[int] = set()
        while waiting:
            block, end = waiting.pop()
            first = bisect_left(defined, self._starts[block])
            last = bisect_left(defined, end)
            for position in range(last - 1, first - 1, -1):
                found.add(defined[position])
                if self._statements[defined[position]].guard is None:
                    break
            else:
                for earlier in self._before[block]:
                    if earlier not in seen:
                        seen.add(earlier)
                        stop = self._starts[earlier + 1] if earlier + 1 < len(self._starts) else len(self._statements)
                        waiting.append((earlier, stop))
        return found
