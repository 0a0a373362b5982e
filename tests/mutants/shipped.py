"""FA4's own kernels with one place of their PTX changed, by name.

Contract: `MUTANTS[name]` says what is changed, on which case of shipped.toml it is tried, under which schedule, and
what notices it: budgets, bits_unlike_baseline among them, or a fault of the machine. A mutant whose `silent` says why
changes no bit there. `MUTANTS[name].kernel` is a kernel object; `kernels.NAME` makes it importable:

    fa4verify run tests/mutants/shipped.toml --kernel tests.mutants.shipped:kernels.sm90_ln2_ulp

Fails first where FA4's PTX changes: ptx_edits.Moved names the pattern that is not where it was.
Written for flash-attn-4 4.0.0b36 with nvidia-cutlass-dsl 4.8.1, head dimension 64, causal, bf16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fa4verify
from fa4verify.kernels.shipped.execution import current, running

from .shipped_edits import SM90, SM90_BACKWARD, SM100, Entry

if TYPE_CHECKING:
    from fa4verify.vocabulary import Output

    from .ptx_edits import Edit

# Many times the 9e4 rows of the untouched kernels: a wait that never comes true must not last.
STEPS = 3_000_000
SCHEDULES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "reversed": {"order": "reversed"},
    "interleaved": {"order": "random", "quantum": 7},
    "late": {"order": "random", "late": True},
}


@dataclass(frozen=True)
class Edited:
    """A shipped kernel whose PTX is edited before it is loaded."""

    name: str
    of: str
    edit: Edit | None
    schedule: str

    def forward(self, q: Any, k: Any, v: Any, **options: Any) -> Output:
        """Run FA4's forward with the edit."""
        with self._edited():
            return fa4verify.kernel(self.of).forward(q, k, v, **options)

    def backward(self, dout: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, **options: Any) -> Output:
        """Run FA4's backward with the edit."""
        with self._edited():
            return fa4verify.kernel(self.of).backward(dout, q, k, v, o, lse, **options)

    def _edited(self) -> Any:
        from fa4verify.ptx import Limits, Schedule

        schedule = Schedule(**SCHEDULES[self.schedule])
        return running(replace(current(), edit=self.edit, schedule=schedule, limits=Limits(steps=STEPS), workers=1))


@dataclass(frozen=True)
class Mutant:
    """One edit, where it is tried, and what is known of it."""

    name: str
    case: str
    entry: Entry

    @property
    def kernel(self) -> Edited:
        """The kernel with the edit."""
        return Edited(self.name, OF[self.case], self.entry.edit, self.entry.schedule)


# Cases of shipped.toml by what they are for; the untouched kernel passes each, in order and late.
CASES = {
    "sm90": "fwd-fa4@sm_90a-bf16-b1h1q200k512d64-causal-fa3_outlier-s0",
    "sm100": "fwd-fa4@sm_100a-bf16-b1h1q200k512d64-causal-fa3_outlier-s0",
    "sm100-stairs": "fwd-fa4@sm_100a-bf16-b1h1q200k512d64-causal-scale0.693147-max_staircase-delta8-s0",
    "sm90-backward": "bwd-fa4@sm_90a-bf16-b1h1q200k384d64-causal-normal-s0",
    "sm90-backward-deep": "bwd-fa4@sm_90a-bf16-b1h1q200k384d64-causal-negative_rows-depth120-s0",
}
OF = {case: f"fa4@{case_id.split('@')[1].split('-')[0]}" for case, case_id in CASES.items()}
MUTANTS = {
    name: Mutant(name, entry.case or case, entry)
    for case, prefix, entries in (
        ("sm90", "sm90", SM90),
        ("sm100", "sm100", SM100),
        ("sm90-backward", "sm90-bwd", SM90_BACKWARD),
    )
    for name, entry in ((f"{prefix}-{short}", entry) for short, entry in entries.items())
}
CLEAN = {
    (of, schedule): Edited(f"clean-{of.split('@')[1]}-{schedule}", of, None, schedule)
    for of, schedule in sorted({(OF[mutant.case], mutant.entry.schedule) for mutant in MUTANTS.values()})
}
kernels = SimpleNamespace(
    **{
        kernel.name.replace("-", "_"): kernel
        for kernel in (*(mutant.kernel for mutant in MUTANTS.values()), *CLEAN.values())
    }
)


def name_of(kernel: Edited) -> str:
    """Return the import string of a mutant or of its untouched twin."""
    return f"{__name__}:kernels.{kernel.name.replace('-', '_')}"
