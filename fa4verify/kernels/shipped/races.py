"""Whether bits depend on the order in which warps run, and whether anything would notice a missing wait.

Contract: `under_schedules` runs one case under each schedule and compares every tensor with the fixed order, bit by
bit; a deadlock or another fault is an outcome, not an exception. `Deletions` does that to copies of the kernel that
lack one synchronising instruction each: what no schedule notices is either not needed for this shape or not tested by
these schedules. Fences are not among them: the machine keeps memory in order, so that nothing could notice.
A schedule shows what it meets: absence of differences is evidence, not proof. "late" is the sharpest of them, since
copies and tensor cores then take effect only when something waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fa4verify.kernels.call import run
from fa4verify.kernels.shipped.execution import using
from fa4verify.ptx import Limits, Schedule
from fa4verify.ptx import MachineFault as MachineFault  # what `under_schedules` raises
from fa4verify.ptx.operations import Column, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fa4verify.ptx import Kernel
    from fa4verify.vocabulary import Case, Inputs, Output

SYNCHRONISING = {
    Op.BAR_SYNC, Op.BAR_ARRIVE, Op.BAR_WARP, Op.MBARRIER_ARRIVE, Op.MBARRIER_EXPECT_TX, Op.MBARRIER_TRY_WAIT,
    Op.MBARRIER_ARRIVE_ASYNC, Op.CLUSTER_ARRIVE, Op.CLUSTER_WAIT, Op.CP_COMMIT, Op.CP_WAIT, Op.BULK_COMMIT,
    Op.BULK_WAIT, Op.WGMMA_COMMIT, Op.WGMMA_WAIT, Op.TC_COMMIT, Op.TC_WAIT_LD, Op.TC_WAIT_ST,
}  # fmt: skip
TENSORS = ("o", "lse", "y", "dq", "dk", "dv", "delta", "dsink")
# Times the rows of the fixed order after which a run counts as one that never ends. A kernel with nothing left out
# needs 1.2 times as many at most, and is given more: it would be a false alarm.
PATIENCE, MORE_PATIENCE = 8, 50


@dataclass(frozen=True)
class Outcome:
    """One run under one schedule.

    Parameters
    ----------
    schedule
        In words: "random, seed 3".
    different
        Elements with other bits than in the fixed order, for every tensor that has any.
    fault
        What went wrong in the machine, on one line, or None.
    steps
        Rows that warps ran; 0 after a fault.
    """

    schedule: str
    different: dict[str, int]
    fault: str | None
    steps: int

    @property
    def agrees(self) -> bool:
        """Whether nothing distinguishes this run from the fixed order."""
        return not self.different and self.fault is None


@dataclass(frozen=True)
class Deletion:
    """One synchronising instruction left out, and who noticed.

    Parameters
    ----------
    kernel, line, instruction
        Entry, line of its PTX and that line's text.
    noticed
        The first outcome that differs, or None where every schedule gave the same bits.
    """

    kernel: str
    line: int
    instruction: str
    noticed: Outcome | None


def schedules(count: int, seed: int = 0) -> tuple[Schedule, ...]:
    """Return the fixed and the reversed order, then `count` that are drawn: every second one late, quanta 1 to 1000."""
    quanta = (1, 7, 33, 200, 1000)
    drawn = (
        Schedule(order="random", seed=seed + i, quantum=quanta[i // 2 % len(quanta)], late=i % 2 == 0)
        for i in range(count)
    )
    return Schedule(), Schedule(order="reversed"), *drawn


def describe(schedule: Schedule) -> str:
    """Return a schedule in words."""
    late = ", late" if schedule.late else ""
    if schedule.order == "random":
        return f"random, seed {schedule.seed}, at most {schedule.quantum} rows at a time{late}"
    return f"{schedule.order}{late}"


def under_schedules(case: Case, inputs: Inputs, chosen: Sequence[Schedule]) -> Iterator[Outcome]:
    """Run a case of a `fa4@...` kernel under each schedule.

    Parameters
    ----------
    case, inputs
        What to run; the seed of a case that is not deterministic is left to the schedule.
    chosen
        The first one is what the others are compared with.

    Yields
    ------
    Outcome
        One a schedule, in their order.

    Raises
    ------
    MachineFault
        The first schedule itself does not end well: there is nothing to compare with.
    """
    expected, steps = _run(case, inputs, chosen[0], None, None)
    yield Outcome(describe(chosen[0]), {}, None, steps)
    for schedule in chosen[1:]:
        yield _compared(case, inputs, schedule, expected, None, MORE_PATIENCE * steps)


class Deletions:
    """Leaves out one synchronising instruction at a time, in every kernel that a case launches.

    Contract: `len` is how many there are; iterating tries one after the other. Schedules are tried until one notices:
    late ones first, which notice most, and long turns first, since a deadlock in which warps get one row at a time
    ends at the step limit only.

    Parameters
    ----------
    case, inputs
        What to run.
    chosen
        The first one is what the others are compared with, without anything left out.
    wanted
        Which instructions, by their text; all by default.
    """

    def __init__(
        self, case: Case, inputs: Inputs, chosen: Sequence[Schedule], wanted: Callable[[str], bool] = lambda _: True
    ) -> None:
        # By identity: FA4 gives kernels of different shapes the same name.
        kernels: dict[int, Kernel] = {}

        def remember(kernel: Kernel) -> Kernel:
            return kernels.setdefault(id(kernel), kernel)

        self._case, self._inputs = case, inputs
        self._expected, self._steps = _run(case, inputs, chosen[0], remember, None)
        self._schedules = sorted(chosen, key=lambda schedule: (not schedule.late, -schedule.quantum))
        self._places = [
            (kernel, row) for kernel in kernels.values() for row in _synchronising(kernel) if wanted(_text(kernel, row))
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Deletion]:
        return (self._without(kernel, row) for kernel, row in self._places)

    def _without(self, kernel: Kernel, row: int) -> Deletion:
        without = kernel.without(row)

        def swap(loaded: Kernel) -> Kernel:
            return without if loaded is kernel else loaded

        limit = PATIENCE * self._steps
        outcomes = (_compared(self._case, self._inputs, one, self._expected, swap, limit) for one in self._schedules)
        noticed = next((outcome for outcome in outcomes if not outcome.agrees), None)
        return Deletion(kernel.name, int(kernel.code[row, Column.LINE]), _text(kernel, row), noticed)


def _text(kernel: Kernel, row: int) -> str:
    return " ".join(kernel.source_line(row).split())


def _synchronising(kernel: Kernel) -> list[int]:
    return [row for row, op in enumerate(kernel.code[:, Column.OP].tolist()) if op in SYNCHRONISING]


def _run(
    case: Case,
    inputs: Inputs,
    schedule: Schedule,
    alter: Callable[[Kernel], Kernel] | None,
    steps: int | None,
) -> tuple[Output, int]:
    limits = None if steps is None else Limits(steps=steps)
    with using(schedule=schedule, limits=limits, alter=alter, workers=1) as execution:
        output = run(case, inputs)
    return output, sum(launch.statistics.steps for launch in execution.launches)


def _compared(
    case: Case,
    inputs: Inputs,
    schedule: Schedule,
    expected: Output,
    alter: Callable[[Kernel], Kernel] | None,
    limit: int,
) -> Outcome:
    words = describe(schedule)
    try:
        output, steps = _run(case, inputs, schedule, alter, limit)
    except MachineFault as fault:
        return Outcome(words, {}, f"{type(fault).__name__}: {' '.join(fault.reason.split())}", 0)
    different = {name: count for name in TENSORS if (count := _different(name, expected, output))}
    return Outcome(words, different, None, steps)


def _different(name: str, expected: Output, output: Output) -> int:
    """Count the elements whose bits differ; NaN equals NaN of the same bits only."""
    one, other = (getattr(of, name, None) for of in (expected, output))
    if one is None or other is None:
        return 0
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return int((one.contiguous().view(kind) != other.contiguous().view(kind)).sum())
