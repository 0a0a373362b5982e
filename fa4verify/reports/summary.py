"""Records -> Summary: the one view model that every renderer takes.

Contract: a row for every case that was asked for, in the order asked for, whatever the order of the records: what has
no Record is MISSING, what was recorded twice counts with its last Record and a note. The counts of all outcomes add up
to `asked`. Only `exit_code` and `failures` know what a study changes: there a FAIL is a point of a curve.
Fails first when a case is lost on its way to a reader: tests/reports/test_counts.py compares every renderer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from fa4verify.reports import repeats
from fa4verify.reports.measures import MEASURES, Measure, Value, fa_rule
from fa4verify.reports.study import Table, tables
from fa4verify.vocabulary import Finding, Outcome, Record

if TYPE_CHECKING:
    from fa4verify.runs import Run, RunHeader

Status = Outcome | Literal["MISSING"]
STATUSES: tuple[Status, ...] = (*get_args(Outcome), "MISSING")

_SLOWEST = 5


@dataclass(frozen=True)
class Row:
    """One case: what became of it, its figures by title, and what decided."""

    id: str
    status: Status
    operation: str = ""
    kernel: str = ""
    dtype: str = ""
    figures: tuple[tuple[Measure, Value], ...] = ()
    findings: tuple[Finding, ...] = ()
    fa_rule: bool | None = None
    seconds: float = 0.0
    command: str = ""
    record: Record | None = None

    @property
    def decisive(self) -> str:
        """The message of the finding that decided, or of the tightest limit that held."""
        for finding in self.findings:
            if not finding.passed:
                return finding.message
        return max(self.findings, key=_tightness).message if self.findings else ""


@dataclass(frozen=True)
class Summary:
    """All that a report says."""

    header: RunHeader
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    repeats: tuple[Table, ...] = ()

    @property
    def is_study(self) -> bool:
        """Whether a FAIL that was measured is a point of a curve."""
        return self.header.study is not None

    def is_point(self, row: Row) -> bool:
        """Whether a FAIL is a point of a curve; one without a figure (no GPU where one is required) is none."""
        return self.is_study and row.status == "FAIL" and row.record is not None and bool(row.record.metrics)

    @property
    def asked(self) -> int:
        """The number of cases asked for."""
        return len(self.rows)

    @property
    def counts(self) -> dict[Status, int]:
        """How many cases came to each outcome; the zeros too."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in STATUSES}

    @property
    def failures(self) -> tuple[Row, ...]:
        """What a reader must look at: all that neither passed nor was skipped, without the points of a study."""
        return tuple(row for row in self.rows if row.status not in ("PASS", "SKIPPED") and not self.is_point(row))

    @property
    def fa_rule(self) -> tuple[int, int]:
        """How many of the FAILs FlashAttention's own rule would have passed, and of how many it can be told."""
        judged = [row.fa_rule for row in self.rows if row.status == "FAIL" and row.fa_rule is not None]
        return sum(judged), len(judged)

    @property
    def slowest(self) -> tuple[Row, ...]:
        """The cases that took longest, slowest first."""
        timed = sorted((row for row in self.rows if row.seconds > 0), key=lambda row: -row.seconds)
        return tuple(timed[:_SLOWEST])

    @property
    def operations(self) -> dict[str, tuple[Row, ...]]:
        """The rows by operation, each a table of its own; MISSING ones, known by id only, last under ""."""
        names = sorted({row.operation for row in self.rows}, key=lambda name: (not name, name != "forward", name))
        return {name: tuple(row for row in self.rows if row.operation == name) for name in names}

    @property
    def headline(self) -> str:
        """One line: the suite and what became of it."""
        suite = self.header.suite or "run"
        kernel = f" with {self.header.kernel}" if self.header.kernel else ""
        return f"{suite}{kernel}: {self.totals}"

    @property
    def totals(self) -> str:
        """The counts that are not zero, in words."""
        points = sum(map(self.is_point, self.rows))
        told = []
        for status, count in self.counts.items():
            told.append((count - points if status == "FAIL" else count, WORDS[status]))
            if status == "FAIL":
                told.append((points, "failed (points of the study)"))
        named = [f"{count} {word}" for count, word in told if count]
        return f"{self.asked} asked: {', '.join(named)}" if named else "no cases were asked for"

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the totals do not say and a reader must know."""
        return tuple(sentence for sentence in (self.fa_rule_sentence, self.unchecked_sentence) if sentence)

    @property
    def unchecked_sentence(self) -> str:
        """Which tensors kernels did not return, so that nobody checked them; empty where there is nothing to say."""
        absent = Counter(
            tensor
            for row in self.rows
            if row.record is not None
            for tensor, state in row.record.checked.items()
            if state == "the kernel returned none"
        )
        said = ", ".join(f"{tensor} in {count} of {self.asked} cases" for tensor, count in sorted(absent.items()))
        return f"Not returned by the kernel, so unchecked: {said}." if said else ""

    @property
    def fa_rule_sentence(self) -> str:
        """What FlashAttention's own rule would have said of the failures; empty where there is nothing to say."""
        passed, judged = self.fa_rule
        noun = "failure" if judged == 1 else "failures"
        return f"FlashAttention's own rule would have passed {passed} of the {judged} {noun}." if judged else ""


WORDS: dict[Status, str] = {
    "PASS": "passed",
    "FAIL": "failed",
    "INCONCLUSIVE": "inconclusive",
    "SKIPPED": "skipped",
    "CRASHED": "crashed",
    "TIMEOUT": "timed out",
    "MISSING": "missing",
}


def summarise(run: Run) -> Summary:
    """Make the view model of a run, finished or not."""
    header, notes = run.header, list(run.notes)
    by_id: dict[str, Record] = {}
    for record in run.records:
        if record.case.id in by_id:
            notes.append(f"{record.case.id} was recorded twice: the last record counts")
        by_id[record.case.id] = record
    asked = dict.fromkeys((*header.asked, *by_id))
    rows = tuple(_row(by_id[name]) if name in by_id else _missing(name) for name in asked)
    records = tuple(row.record for row in rows if row.record is not None)
    curves = tables(header.study, records) if header.study else ()
    return Summary(header, rows, tuple(notes), curves, repeats.tables(records))


def exit_code(summary: Summary) -> int:
    """Return 0 if all passed, 1 if something failed, 3 if nothing failed but not everything could be said.

    Skips are fine as long as something passed. In a study a FAIL that was measured is a point.
    """
    counts, points = summary.counts, sum(map(summary.is_point, summary.rows))
    measured = counts["PASS"] + points
    if counts["CRASHED"] or counts["TIMEOUT"] or counts["FAIL"] > points:
        return 1
    return 3 if counts["INCONCLUSIVE"] or counts["MISSING"] or summary.notes or not measured else 0


def _row(record: Record) -> Row:
    case = record.case
    return Row(
        id=case.id,
        status=record.verdict.outcome,
        operation=case.operation,
        kernel=case.kernel,
        dtype=case.dtype,
        figures=tuple((measure, measure.of(record)) for measure in MEASURES[case.operation]),
        findings=record.verdict.findings,
        fa_rule=fa_rule(record),
        seconds=sum(record.seconds.values()),
        command=record.command,
        record=record,
    )


def _missing(name: str) -> Row:
    return Row(name, "MISSING", findings=(Finding("no record: the run ended before this case was done"),))


def _tightness(finding: Finding) -> float:
    if finding.value is None or not finding.limit:
        return 0.0
    return abs(finding.value / finding.limit)
