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

LEAVING = ("bra", "exit", "ret", "trap")


class Paths:
    """Blocks of an entry and what runs before and after each."""

    def __init__(self, entry: Entry) -> None:
        self._statements = entry.statements
        self._known: dict[tuple[int, Register], tuple[int, ...]] = {}

    @cached_property
    def starts(self) -> list[int]:
        """First statement of each block."""
        starts = {0}
        for index, one in enumerate(self._statements):
            if one.target >= 0:
                starts.add(one.target)
            if one.opcode.split(".")[0] in LEAVING:
                starts.add(index + 1)
        return sorted(start for start in starts if start < len(self._statements))

    @cached_property
    def ends(self) -> list[int]:
        """First statement after each block."""
        return [*self.starts[1:], len(self._statements)]

    @cached_property
    def after(self) -> list[list[int]]:
        """Blocks that may run after each block: the next one or -1 for none, then where it branches to."""
        found = []
        for block, end in enumerate(self.ends):
            last = self._statements[end - 1]
            goes_on = last.guard is not None or last.opcode.split(".")[0] not in LEAVING
            found.append([block + 1 if goes_on and end < len(self._statements) else -1])
            if last.target >= 0:
                found[block].append(self.block(last.target))
        return found

    def block(self, index: int) -> int:
        """Return the block of a statement."""
        return bisect_right(self.starts, index) - 1

    @cached_property
    def _before(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.starts]
        for block, following in enumerate(self.after):
            for one in following:
                if one >= 0:
                    found[one].append(block)
        return found

    def reaching(self, at: int, register: Register, defined: Iterable[int]) -> tuple[int, ...]:
        """Return which of the statements `defined`, all writing `register`, may be what statement `at` reads."""
        key = at, register
        if key not in self._known:
            self._known[key] = tuple(sorted(self._search(at, sorted(defined))))
        return self._known[key]

    def _search(self, at: int, defined: list[int]) -> set[int]:
        found: set[int] = set()
        waiting = [(self.block(at), at)]
        seen: set[int] = set()
        while waiting:
            block, end = waiting.pop()
            first = bisect_left(defined, self.starts[block])
            last = bisect_left(defined, end)
            for position in range(last - 1, first - 1, -1):
                found.add(defined[position])
                if self._statements[defined[position]].guard is None:
                    break
            else:
                for earlier in self._before[block]:
                    if earlier not in seen:
                        seen.add(earlier)
                        waiting.append((earlier, self.ends[earlier]))
        return found
