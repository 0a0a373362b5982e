"""How far a run is, while it runs.

Contract: a live bar on a terminal; elsewhere (a CI log) a plain line at most every `every_s` seconds and one at the
end, without escape codes. It counts what it is given and never reads the records' numbers.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from fa4verify.reports.summary import WORDS
from fa4verify.reports.text import seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fa4verify.vocabulary import Record


class Progress:
    """Shows how many of `total` cases are done, what became of them, and when the rest will be; a context manager."""

    def __init__(
        self,
        total: int,
        *,
        console: Console | None = None,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._console = console or Console(stderr=True)
        self._every_s = every_s
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._began = self._said = clock()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        """Draw the empty bar, on a terminal."""
        self._began = self._said = self._clock()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            self._bar = Bar(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=self._console)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen, also after Ctrl-C."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self._counts.total() < self._total:  # the last line has been said otherwise
            self._say()

    def record(self, record: Record) -> None:
        """Count one more case."""
        self._counts[record.verdict.outcome] += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, description=self.counts)
        elif self._counts.total() == self._total or self._clock() - self._said >= self._every_s:
            self._say()

    @property
    def counts(self) -> str:
        """What became of the cases so far, in words."""
        return ", ".join(f"{self._counts[status]} {word}" for status, word in WORDS.items() if self._counts[status])

    def _say(self) -> None:
        self._said = self._clock()
        done, elapsed = self._counts.total(), self._said - self._began
        left = f", about {seconds(elapsed / done * (self._total - done))} left" if 0 < done < self._total else ""
        line = f"{done}/{self._total} {self.counts or 'done'} after {seconds(elapsed)}{left}"
        self._console.print(Text(line), soft_wrap=True)
