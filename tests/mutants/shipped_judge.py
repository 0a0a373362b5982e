"""What notices a PTX mutant: its case of shipped.toml, judged as flow.verify does.

Contract: truth and baseline of a case are worked out once a process. A MachineFault is an outcome; anything else that
is raised is not expected of an edited kernel and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fa4verify import cases, judgement, kernels, references
from fa4verify.ptx import MachineFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fa4verify.vocabulary import Case, Inputs, Metrics, Output, Truth

    from .shipped import Edited

SUITE = Path(__file__).with_name("shipped.toml")
BITS = "bits_unlike_baseline"


@dataclass(frozen=True)
class Judged:
    """How a case ended: "PASS", "FAIL" with the budgets that failed, or the name of the machine's fault."""

    outcome: str
    failed: tuple[str, ...] = ()
    unlike: Mapping[str, int] | None = None  # elements of each tensor whose bits are not the emulation's
    message: str = ""

    @property
    def by_errors(self) -> bool:
        """Whether a budget on errors fails it, not only one on bits."""
        return any(not name.endswith("-bits") for name in self.failed)


@cache
def suite() -> Mapping[str, Case]:
    """Return the cases by id."""
    return {case.id: case for case in cases.load_suite(str(SUITE)).cases}


@cache
def _prepared(case_id: str) -> tuple[Inputs, Truth, Output, Mapping[str, Metrics]]:
    case = suite()[case_id]
    inputs = cases.draw(case)
    truth = references.solve(case, inputs)
    baseline = kernels.run(msgspec.structs.replace(case, kernel=case.baseline), inputs)
    return inputs, truth, baseline, judgement.measure(case, baseline, truth)


def judged(case_id: str, kernel: Edited) -> Judged:
    """Run a kernel of shipped.py on a case."""
    from .shipped import name_of

    case = msgspec.structs.replace(suite()[case_id], kernel=name_of(kernel))
    inputs, truth, baseline, baseline_metrics = _prepared(case_id)
    try:
        output = kernels.run(case, inputs)
    except MachineFault as fault:
        return Judged(type(fault).__name__, message=str(fault))
    metrics = judgement.measure(case, output, truth, baseline=baseline)
    verdict = judgement.judge(case, metrics, baseline_metrics, output, truth)
    failed = tuple(finding.budget or finding.message for finding in verdict.findings if not finding.passed)
    unlike = {name: int(found.values[BITS]) for name, found in metrics.items() if BITS in found.values}
    return Judged(verdict.outcome, failed, unlike, "; ".join(finding.message for finding in verdict.findings))
