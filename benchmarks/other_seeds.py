"""How often a correct kernel fails a suite's limits on other draws: `python benchmarks/other_seeds.py gate 101 102`.

Runs every forward and backward of the emulations with these seeds instead of its own and prints what did not pass: the
alarms that whoever changes a seed would see. docs/budgets.md has what it gave.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from fa4verify import cases
from fa4verify.cases.naming import case_id
from fa4verify.sweep import sweep

if TYPE_CHECKING:
    from fa4verify.vocabulary import Case


def reseeded(case: Case, seed: int) -> Case:
    """Return the case with another seed, and the id that this makes."""
    other = msgspec.structs.replace(case, seed=seed)
    return msgspec.structs.replace(other, id=case_id(other))


def drawn(suite: str, seeds: list[int]) -> list[Case]:
    """Return the suite's cases with these seeds; those that differed in their seed alone are one."""
    chosen = [
        case
        for case in cases.load_suite(suite).cases
        if case.operation in ("forward", "backward") and case.kernel in ("fa4-sm90", "fa4-sm100")
    ]
    again = (reseeded(case, seed) for case in chosen for seed in seeds)
    return list({case.id: case for case in again}.values())


def main(suite: str, seeds: list[int]) -> None:
    """Run and print."""
    counted = failed = 0
    for record in sweep(drawn(suite, seeds)):
        counted += 1
        if record.verdict.outcome != "PASS":
            failed += 1
            broken = next(finding for finding in record.verdict.findings if not finding.passed)
            print(record.case.id, record.verdict.outcome, broken.message, flush=True)
    print(f"{suite}, seeds {' '.join(map(str, seeds))}: {failed} of {counted} did not pass")


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:]])
