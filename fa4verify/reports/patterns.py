"""What failing cases have in common: for each property of a case, how many of those that have it fail.

Contract: counts only, no model. A property is listed where its share of failures exceeds the run's by a fifth at least,
two cases or more; the largest excess of failures over what the run's own share would give comes first. Where nothing
fails, or more than two thirds, nothing is told apart by failing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa4verify.reports.repeats import heads_of, mask_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fa4verify.vocabulary import Case, Record

BAD = ("FAIL", "CRASHED", "TIMEOUT")
MOST = 8
NEARLY_ALL = 2 / 3
LONG = 1024


@dataclass(frozen=True)
class Pattern:
    """A property, how many cases have it, and how many of them fail."""

    what: str
    failed: int
    cases: int


def patterns(records: Sequence[Record]) -> tuple[Pattern, ...]:
    """Return the properties that failing cases share more than others do, worst first."""
    judged = [record for record in records if record.verdict.outcome != "SKIPPED"]
    bad = sum(record.verdict.outcome in BAD for record in judged)
    if not bad or bad / len(judged) > NEARLY_ALL:
        return ()
    counts: dict[str, list[int]] = {}
    for record in judged:
        for what in _properties(record.case):
            count = counts.setdefault(what, [0, 0])
            count[0] += record.verdict.outcome in BAD
            count[1] += 1
    overall = bad / len(judged)
    found = [
        Pattern(what, failed, cases)
        for what, (failed, cases) in counts.items()
        if failed > 1 and cases < len(judged) and failed / cases > 1.2 * overall
    ]
    return tuple(sorted(found, key=lambda item: overall * item.cases - item.failed)[:MOST])


def _properties(case: Case) -> Iterator[str]:
    shape = case.shape
    yield f"operation {case.operation}"
    yield f"kernel {case.kernel}"
    yield f"inputs {case.distribution.name}"
    if case.operation == "exp2":
        return
    yield f"dtype {case.dtype}"
    yield f"{heads_of(case)} heads"
    yield f"mask {mask_of(case)}"
    yield f"head_dim {shape.head_dim}"
    for length, name in ((shape.seqlen_q, "queries"), (shape.seqlen_k, "keys")):
        yield f"{name} {'1' if length == 1 else f'2 to {LONG}' if length <= LONG else f'over {LONG}'}"
        if length % 128:
            yield f"{name} not a multiple of 128"
    if shape.batch > 1:
        yield "batch over 1"
    if case.softcap:
        yield "softcap"
    if case.learnable_sink:
        yield "learnable sink"
    for name, value in case.options.items():
        yield f"{name}={value}"


__all__ = ["Pattern", "patterns"]
