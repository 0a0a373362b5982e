"""Summary -> what the HTML page shows: failures with their evidence, limits, kernels, what was not checked.

Contract: text and numbers as they will be read; escaping is the template's business, cutting is done here: foreign text
is one line of printable characters (`text`), or a block (`block`), of bounded length, and says how much is left out.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa4verify.reports import meanings
from fa4verify.reports.location import locate
from fa4verify.reports.measures import MEASURES, metric, ratio
from fa4verify.reports.text import NONE, digits, one_line, printable
from fa4verify.vocabulary import BITS, EXP2_METRICS, METRICS, REPEAT_METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fa4verify.reports.study import Table
    from fa4verify.reports.summary import Row, Summary
    from fa4verify.vocabulary import Budget, Finding, Record

CARDS = 100  # failures told in full, the first OPEN of them open
OPEN = 10
LONGEST_LINE, LONGEST_BLOCK = 300, 2000
COUNTS = frozenset(metric for metric in (*METRICS, *REPEAT_METRICS, *EXP2_METRICS) if "mismatches" in metric) | {
    BITS,
    "distinct",
    "keyless_rows_not_zero",
}
_BAD_FIRST = ("FAIL", "CRASHED", "TIMEOUT", "INCONCLUSIVE", "MISSING")


@dataclass(frozen=True)
class Section:
    """A part of the page that another module fills: sentences, then tables."""

    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """One limit that was broken."""

    message: str
    name: str = ""
    meaning: str = ""
    value: str = ""
    limit: str = ""
    times: str = ""
    where: str = ""
    limit_anchor: str = ""


@dataclass(frozen=True)
class Failure:
    """One case that needs a reader."""

    row: Row
    evidence: tuple[Evidence, ...]
    hints: tuple[str, ...]
    sure: tuple[str, ...]


@dataclass(frozen=True)
class Limit:
    """One limit over all cases that have it, and the case that comes closest."""

    anchor: str
    budget: Budget
    meaning: str
    held: int
    broken: int
    unsaid: int
    closest: float | None
    closest_row: Row | None


def text(value: object, longest: int = LONGEST_LINE) -> str:
    """Return foreign text on one printable line of bounded length."""
    if isinstance(value, str) and len(value) <= longest and value.isascii() and value.isprintable():
        return " ".join(value.split())  # nearly all there is; the long way takes a third of the page's time
    return _cut(one_line(str(value)[: 4 * longest]), longest, len(str(value)))


def block(value: str) -> str:
    """Return foreign text with its lines, printable and of bounded length."""
    return _cut(printable(value[: 4 * LONGEST_BLOCK]), LONGEST_BLOCK, len(value))


def _cut(shown: str, longest: int, length: int) -> str:
    if len(shown) <= longest and length <= 4 * longest:
        return shown
    return f"{shown[:longest]} ... ({length} characters, all of them in the run file)"


def failures(summary: Summary) -> tuple[Failure, ...]:
    """Return what must be looked at, FAIL first, the largest excess over a limit first."""
    return tuple(_failure(row) for row in worst_first(summary)[:CARDS])


def worst_first(summary: Summary) -> list[Row]:
    """Return the cases that need a reader, without those that have no record."""
    rows = [row for row in summary.failures if row.status != "MISSING"]
    return sorted(rows, key=lambda row: (_BAD_FIRST.index(row.status), -_excess(row)))


def _excess(row: Row) -> float:
    shares = (share(row, finding) for finding in row.findings if not finding.passed)
    return max((value for value in shares if value is not None), default=math.inf)


def share(row: Row, finding: Finding) -> float | None:
    """Return how much of its limit a finding takes: beyond 1 it breaks it.

    Infinity over a limit of 0; None where there is no number, and for a count that keeps its limit: one bit pattern of
    one allowed is not close to two.
    """
    if finding.value is None or finding.limit is None or (finding.passed and finding.metric in COUNTS):
        return None
    budget = _budget(row, finding)
    target = budget.value if budget is not None and budget.kind == "equals" else 0.0
    found = ratio(abs(finding.value - target), abs(finding.limit))
    return 0.0 if found is None else found


def _budget(row: Row, finding: Finding) -> Budget | None:
    budgets = row.record.case.budgets if row.record is not None else ()
    return next((budget for budget in budgets if budget.name == finding.budget), None)


def closest(row: Row) -> Finding | None:
    """Return the finding that decided a case: the broken one, or the one nearest to its limit."""
    judged = [finding for finding in row.findings if finding.metric and share(row, finding) is not None]
    broken = [finding for finding in judged if not finding.passed]
    return max(broken or judged, key=lambda finding: share(row, finding) or 0.0, default=None)


def _failure(row: Row) -> Failure:
    shown = [finding for finding in row.findings if not finding.passed]
    hints = [finding for finding in shown if finding.message.startswith("hint: ")]
    evidence = tuple(_evidence(row, finding) for finding in shown if finding not in hints)
    return Failure(row, evidence, tuple(text(item.message[6:]) for item in hints), tuple(_sure(row)))


def _evidence(row: Row, finding: Finding) -> Evidence:
    times = share(row, finding)
    return Evidence(
        message=block(finding.message),
        name=text(f"{finding.tensor} {finding.metric}") if finding.tensor and finding.metric else "",
        meaning=meanings.of(finding.metric or ""),
        value=digits(finding.value, 4),
        limit=digits(finding.limit, 4),
        times=NONE if times is None else "none allowed" if math.isinf(times) else f"{digits(times)} x the limit",
        where=locate(row.record, finding.tensor, finding.where) if row.record else "",
        limit_anchor=finding.budget or "",
    )


def _sure(row: Row) -> Iterator[str]:
    """Yield what speaks for or against the verdict on a failed case."""
    record = row.record
    if record is None or row.status != "FAIL":
        return
    for finding in row.findings:
        if finding.passed or not finding.tensor or not finding.metric or finding.message.startswith("hint: "):
            continue
        yield from _about_truth(record, finding)
        error = metric(record, finding.tensor, f"{finding.metric}_standard_error")
        if error and finding.value is not None:
            yield (
                f"{finding.tensor} {finding.metric} is {digits(abs(finding.value) / error)} of its standard errors "
                f"({digits(error)}) from 0."
            )
        if finding.metric in ("rmse", "max_abs", "relative_rmse"):
            floor = ratio(metric(record, finding.tensor, "rmse"), metric(record, finding.tensor, "floor_rmse"))
            if floor is not None and math.isfinite(floor):
                yield f"The RMSE of {finding.tensor} is {digits(floor)} times that of a correctly rounded one."
    if row.fa_rule is not None:
        yield f"FlashAttention's own rule {'would let this case pass' if row.fa_rule else 'fails this case too'}."
    if (bound := metric(record, "dq", "rate_bound")) is not None:
        runs = digits(metric(record, "dq", "runs"))
        yield f"Over {runs} runs; another run differs at a rate of at most {digits(bound)}."


def _about_truth(record: Record, finding: Finding) -> Iterator[str]:
    measured = record.metrics.get(finding.tensor or "")
    profile = None if measured is None else measured.profile
    if profile is None or profile.radius is None or finding.metric not in ("rmse", "max_abs", "mean_error"):
        return
    said = f"The truth of {finding.tensor} is certified to {digits(profile.radius)}"
    how = record.provenance.get("radius", "")
    yield f"{said}{f' ({text(how)})' if how else ''}, beside a limit of {digits(finding.limit)}."


def limits(summary: Summary) -> tuple[Limit, ...]:
    """Return every limit of the run, broken ones first, then the one that came closest to breaking."""
    budgets: dict[Budget, list[tuple[Row, Finding]]] = {}
    for row in summary.rows:
        if row.record is None:
            continue
        by_name = {finding.budget: finding for finding in row.findings if finding.budget}
        for budget in row.record.case.budgets:
            if budget.name in by_name:
                budgets.setdefault(budget, []).append((row, by_name[budget.name]))
    found = [_limit(budget, judged) for budget, judged in budgets.items()]
    return tuple(sorted(found, key=lambda limit: (-limit.broken, -taken(limit))))


def _limit(budget: Budget, judged: list[tuple[Row, Finding]]) -> Limit:
    held = sum(finding.passed for _, finding in judged)
    broken = sum(not finding.passed and row.status == "FAIL" for row, finding in judged)
    shares = [share(row, finding) for row, finding in judged]
    row, _ = judged[max(range(len(judged)), key=lambda index: shares[index] or 0.0)]
    numbers = [value for value in shares if value is not None]
    return Limit(
        anchor=budget.name,
        budget=budget,
        meaning=meanings.of(budget.metric),
        held=held,
        broken=broken,
        unsaid=len(judged) - held - broken,
        closest=max(numbers, default=None),
        closest_row=row,
    )


def taken(limit: Limit) -> float:
    """Return the largest share of the limit that any case takes, 0 where none has a number."""
    return limit.closest or 0.0


def kernels(summary: Summary) -> dict[str, tuple[int, dict[str, tuple[str, ...]]]]:
    """Return for each kernel its number of cases and what it said of itself: every value of each key of provenance."""
    found: dict[str, tuple[int, dict[str, dict[str, None]]]] = {}
    for row in summary.rows:
        if row.record is not None:
            count, facts = found.get(row.kernel, (0, {}))
            found[row.kernel] = (count + 1, facts)
            for key, value in row.record.provenance.items():
                if key not in ("radius", "deterministic"):
                    facts.setdefault(key, {})[value] = None
    return {
        name: (count, {key: tuple(values) for key, values in facts.items()}) for name, (count, facts) in found.items()
    }


def unchecked(summary: Summary) -> dict[str, int]:
    """Return for each tensor or counter that was not checked, with the reason, in how many cases."""
    found: Counter[str] = Counter()
    for row in summary.rows:
        for tensor, state in row.record.checked.items() if row.record else ():
            if state != "checked":
                found[text(f"{tensor}: {state}")] += 1
    return dict(found.most_common())


def not_run(summary: Summary) -> dict[tuple[str, str], tuple[Row, ...]]:
    """Return the cases without a judgement by status and reason."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in summary.rows:
        if row.status in ("SKIPPED", "MISSING"):
            groups.setdefault((row.status, text(row.decisive)), []).append(row)
    return {reason: tuple(rows) for reason, rows in groups.items()}


def columns(operation: str, rows: tuple[Row, ...]) -> list[int]:
    """Return the measures that some case of the table has."""
    count = len(MEASURES.get(operation, ()))
    return [index for index in range(count) if any(row.figures and row.figures[index][1] is not None for row in rows)]


def only_kernel(rows: tuple[Row, ...]) -> str:
    """Return the kernel of all these cases, empty where there are several."""
    names = {row.kernel for row in rows}
    return names.pop() if len(names) == 1 else ""


def rerun(summary: Summary) -> str:
    """Return the command that runs what needs a look once more, or everything if nothing does."""
    failed = [row.id for row in summary.failures]
    few = failed and len(failed) <= 5 and len(failed) < summary.asked
    select = " or ".join(f"id={name}" for name in failed) if few else summary.header.select
    return text(shlex.join(summary.header.command(select)), 4000)
