"""What goes wrong when PTX is read or run, as exceptions whose text is the report.

Contract: reading raises one PtxError that lists every statement which cannot be run, each with its line, its text and
the reason; running raises a MachineFault that names the kernel, the line of the PTX and its text, CTA, warp and lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from fa4verify.ptx.state import Fault

SHOWN = 12  # problems that a message spells out; the others are counted and kept in `problems`
WIDTH = 160  # of a statement's text in a message: an instruction on tensor cores lists over a hundred registers


@dataclass(frozen=True, slots=True)
class Problem:
    """One statement that cannot be read."""

    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        text = self.text if len(self.text) <= WIDTH else f"{self.text[: WIDTH - 4]} ..."
        return f"line {self.line}: {self.reason}\n    {text}"


class PtxError(ValueError):
    """A text that is not PTX, or asks for what the machine does not have."""

    def __init__(self, problems: tuple[Problem, ...], kernel: str = "") -> None:
        self.problems = problems
        shown = "\n  ".join(str(problem) for problem in problems[:SHOWN])
        more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        noun = "statement" if len(problems) == 1 else "statements"
        where = f" of {kernel}" if kernel else ""
        super().__init__(f"{len(problems)} {noun}{where} cannot be run:\n  {shown}{more}")


class Unsupported(Exception):  # noqa: N818 (a reason on its way to a Problem, never seen outside)
    """The reason why the statement at hand cannot be read; its reader adds line and text."""


class MachineFault(RuntimeError):  # noqa: N818 (its subclasses name the fault: OutOfBounds, Deadlock)
    """A program did what the machine does not allow, or could not go on.

    Parameters
    ----------
    reason : str
        What happened and what was expected, with addresses in hex.
    kernel, line, text : str, int, str
        Entry, line of the PTX and that line's text (0 and empty where no one instruction is to blame).
    cta, warp, lane : tuple of int, int, int
        Who did it; -1 where it was not one warp or lane.
    """

    def __init__(
        self,
        reason: str,
        *,
        kernel: str = "",
        line: int = 0,
        text: str = "",
        cta: tuple[int, int, int] | None = None,
        warp: int = -1,
        lane: int = -1,
    ) -> None:
        self.reason, self.kernel, self.line, self.text = reason, kernel, line, text
        self.cta, self.warp, self.lane = cta, warp, lane
        who = [f"CTA {cta}"] if cta is not None else []
        who += [f"warp {warp}"] if warp >= 0 else []
        who += [f"lane {lane}"] if lane >= 0 else []
        where = f"\n  {kernel or 'kernel'}, line {line}: {text.strip()[:WIDTH]}" if line else f"\n  {kernel}"
        super().__init__(f"{reason}{where if kernel or line else ''}" + (f"\n  {', '.join(who)}" if who else ""))


class OutOfBounds(MachineFault):
    """An address outside of what the kernel may touch."""


class Misaligned(MachineFault):
    """An address that is not a multiple of what the instruction demands."""


class DivergentWarp(MachineFault):
    """An instruction for a whole warp met a part of it."""


class BarrierMisuse(MachineFault):
    """A named barrier or mbarrier used against its rules: too many arrivals, not initialised, a wrong count."""


class BadDescriptor(MachineFault):
    """A tensor map, a matrix descriptor or an instruction descriptor that means nothing, or what the machine lacks."""


class TensorMemoryFault(MachineFault):
    """Tensor memory allocated, freed or addressed against its rules."""


class PendingAtExit(MachineFault):
    """A CTA ended while an asynchronous operation on its memory had not."""


class Deadlock(MachineFault):
    """Nobody can go on; the reason lists who waits on what."""


class LimitReached(MachineFault):
    """The step limit or the wall-clock limit of the launch."""


class Trapped(MachineFault):
    """The program executed `trap`."""


FAULTS: dict[Fault, type[MachineFault]] = {
    Fault.SHARED_BOUNDS: OutOfBounds,
    Fault.GLOBAL_BOUNDS: OutOfBounds,
    Fault.PARAMETER_BOUNDS: OutOfBounds,
    Fault.LOCAL_BOUNDS: OutOfBounds,
    Fault.TMEM_BOUNDS: TensorMemoryFault,
    Fault.TMEM_ALLOCATION: TensorMemoryFault,
    Fault.MISALIGNED: Misaligned,
    Fault.DIVERGENT: DivergentWarp,
    Fault.MBARRIER_OVERFLOW: BarrierMisuse,
    Fault.MBARRIER_UNINITIALISED: BarrierMisuse,
    Fault.BARRIER_MISUSE: BarrierMisuse,
    Fault.TENSOR_MAP: BadDescriptor,
    Fault.DESCRIPTOR: BadDescriptor,
    Fault.PENDING_AT_EXIT: PendingAtExit,
    Fault.DEADLOCK: Deadlock,
    Fault.STEP_LIMIT: LimitReached,
    Fault.TIME_LIMIT: LimitReached,
    Fault.TRAP: Trapped,
}
