"""The report for a pull request: GitHub-flavoured Markdown.

Contract: headline and failures first, everything else below, the environment folded. Foreign text stands in code spans
and fences longer than any run of backticks in it, so that no id or message can become markup.
Plain code instead of a template: Markdown is lines, and the tables are the longer part.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fa4verify.reports import measures, repeats, study
from fa4verify.reports.measures import MEASURES
from fa4verify.reports.text import one_line, printable, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fa4verify.reports.page import Section
    from fa4verify.reports.study import Table
    from fa4verify.reports.summary import Row, Summary

SIGNS = {
    "PASS": "✅",
    "FAIL": "❌",
    "INCONCLUSIVE": "❔",
    "SKIPPED": "⏭️",
    "CRASHED": "💥",
    "TIMEOUT": "⏰",
    "MISSING": "🕳️",
}


def render(summary: Summary, *, sections: Sequence[Section] = ()) -> str:
    """Return the report as one Markdown document; `sections` of other modules stand after the failures."""
    return "\n".join(_lines(summary, sections)).rstrip("\n") + "\n"


def section(part: Section, *, level: int = 2) -> str:
    """Return a part of a report that another module filled; every cell is foreign text here."""
    return "\n".join(_section(part, level)).rstrip("\n") + "\n"


def _section(part: Section, level: int) -> Iterator[str]:
    yield f"{'#' * level} {_prose(part.title)}\n"
    for sentence in part.sentences:
        yield f"{_prose(sentence)}\n"
    for table in part.tables:
        yield f"{'#' * (level + 1)} {_prose(table.title)}\n"
        cells = ([_code(label), *(_code(cell.text) for cell in cells)] for label, cells in table.lines)
        yield from _table([_prose(header) for header in table.headers], cells)


def _lines(summary: Summary, sections: Sequence[Section]) -> Iterator[str]:
    header = summary.header
    name = f"{header.suite or 'run'}{f' with {header.kernel}' if header.kernel else ''}"
    yield f"# fa4verify: {_code(name)}\n"
    yield f"**{summary.totals}.** {' '.join(summary.sentences)}".rstrip() + "\n"
    for note in summary.notes:
        yield f"- note: {_code(note)}"
    if summary.notes:
        yield ""
    counts = [(f"{SIGNS[status]} {status}", str(count)) for status, count in summary.counts.items()]
    yield from _table(["outcome", "cases"], [*counts, ("asked", str(summary.asked))])
    if missing := summary.counts["MISSING"]:
        yield f"The run ended before it was done: {missing} of {summary.asked} cases have no record (listed last).\n"
    failures = [row for row in summary.failures if row.status != "MISSING"]
    if failures:
        yield "## To look at\n"
        for row in failures:
            yield from _failure(row)
    for part in sections:
        yield from _section(part, 2)
    yield from _tables("## Curves\n", summary.tables, study.LEGEND)
    yield from _tables("## Repeated runs\n", summary.repeats, repeats.LEGEND)
    yield "## All cases\n"
    for operation, rows in summary.operations.items():
        yield from _cases(operation, rows)
    if any(row.operation == "forward" for row in summary.rows):
        yield f"{measures.LEGEND.replace('*', chr(92) + '*').replace('|', chr(92) + '|')}\n"
    if any(row.operation == "repeat" for row in summary.rows):
        yield f"{measures.REPEAT_LEGEND.replace('<', chr(92) + '<')}\n"
    if summary.slowest:
        yield "## Slowest cases\n"
        yield from _table(["case", "time"], [(_code(row.id), seconds(row.seconds)) for row in summary.slowest])
    yield from _environment(summary)


def _tables(heading: str, tables: Sequence[Table], legend: str) -> Iterator[str]:
    if not tables:
        return
    yield heading
    for table in tables:
        yield f"### {_code(table.title)}\n"
        cells = ([_code(label), *(cell.text for cell in cells)] for label, cells in table.lines)
        yield from _table([_code(header) for header in table.headers], cells)
    yield f"{legend}\n"


def _failure(row: Row) -> Iterator[str]:
    yield f"### {SIGNS[row.status]} {row.status} {_code(row.id)}\n"
    lines = [printable(finding.message) for finding in row.findings if not finding.passed]
    yield from _fence("\n".join([*lines, *([f"rerun: {printable(row.command)}"] if row.command else [])]))


def _cases(operation: str, rows: Sequence[Row]) -> Iterator[str]:
    titles = [measure.title for measure in MEASURES.get(operation, ())]
    headers = ["verdict", operation or "not recorded", "kernel", "dtype", *titles, "what decided"]
    lines = [
        [
            f"{SIGNS[row.status]} {row.status}",
            _code(row.id),
            _code(row.kernel),
            row.dtype or "-",
            *(measure.show(value) for measure, value in row.figures),
            _code(row.decisive.partition("; ")[0]),
        ]
        for row in rows
    ]
    yield from _table(headers, lines)


def _environment(summary: Summary) -> Iterator[str]:
    header = summary.header
    facts = {
        "fa4verify": header.version,
        "commit": header.commit or "unknown",
        "date": header.date.isoformat(timespec="seconds"),
        "machine": header.machine or "unknown",
        **header.fingerprint,
    }
    yield "<details><summary>Environment</summary>\n"
    yield from _table(["what", "value"], [(_code(name), _code(value)) for name, value in facts.items()])
    yield "</details>\n"
    if header.suite:
        yield "## Rerun\n"
        kernel = f" --kernel {header.kernel}" if header.kernel else ""
        yield from _fence(one_line(f"fa4verify run {header.suite}{kernel}"))


def _table(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(headers)
    yield _row(["---"] * len(headers))
    for line in lines:
        yield _row(line)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    """Return a code span that holds the text on one line, or a dash."""
    text = one_line(text)
    if not text:
        return "-"
    ticks = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _prose(text: str) -> str:
    """Return a sentence in which no character is markup."""
    return re.sub(r"([\\`*_\[\]<>#!|~&])", r"\\\1", one_line(text))


def _fence(text: str) -> Iterator[str]:
    ticks = "`" * max(3, _longest_run(text) + 1)
    yield f"{ticks}text\n{text}\n{ticks}\n"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
