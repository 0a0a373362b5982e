"""The report for a pull request or a step summary: GitHub-flavoured Markdown.

Contract: headline and failures first, worst first, everything else below, the environment folded. At most LIMIT bytes,
whatever the run: a part is cut where there is no room left for its next line, and says how many it leaves out. Foreign
text stands in code spans and fences longer than any run of backticks in it, so that no id or message can become markup.
Plain code instead of a template: Markdown is lines, and the tables are the longer part.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa4verify.reports import measures, page, repeats, study
from fa4verify.reports.measures import MEASURES
from fa4verify.reports.page import worst_first
from fa4verify.reports.text import one_line, seconds

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


# GitHub drops a step summary of more than 1 MiB, and cuts a comment at 65,536 characters.
LIMIT = 1_000_000
_NOTES, _FACTS = 20, 60
_WORST_FIRST = ("FAIL", "CRASHED", "TIMEOUT", "INCONCLUSIVE", "PASS", "SKIPPED", "MISSING")


@dataclass(frozen=True)
class _Part:
    """A heading, `count` entries of which the last may be left out, and a tail; `share` of the room at most.

    Entries are made when they are asked for: of 10,000 cases a few thousand fit.
    """

    head: str
    entries: Iterable[str] = ()
    count: int = 0
    tail: str = ""
    share: float = 1.0


def render(summary: Summary, *, sections: Sequence[Section] = (), limit: int = LIMIT) -> str:
    """Return the report as one Markdown document; `sections` of other modules stand after the failures."""
    return _fitted(list(_parts(summary, sections)), limit)


def section(part: Section, *, level: int = 2, limit: int = LIMIT) -> str:
    """Return a part of a report that another module filled; every cell is foreign text here."""
    return _fitted(list(_section(part, level)), limit)


def _fitted(parts: Sequence[_Part], limit: int) -> str:
    """Join the parts, each with as many of its entries as there is room for once all heads and tails are placed."""
    left = limit - sum(_size(part.head) + _size(part.tail) + len(_more(part.count)) for part in parts)
    text: list[str] = []
    for part in parts:
        text.append(part.head)
        room, shown = int(part.share * left), 0
        for entry in part.entries:
            size = _size(entry)
            if size > room:
                break
            text.append(entry)
            room, left, shown = room - size, left - size, shown + 1
        if shown < part.count:
            text.append(_more(part.count - shown))
        text.append(part.tail)
    return "".join(text).rstrip("\n") + "\n"


def _more(count: int) -> str:
    return f"\n**{count} more are left out here;** the run file and the HTML report have them.\n"


def _size(text: str) -> int:
    return len(text.encode())


def _section(part: Section, level: int) -> Iterator[_Part]:
    sentences = "".join(f"{_prose(sentence)}\n\n" for sentence in part.sentences)
    yield _Part(f"{'#' * level} {_prose(part.title)}\n\n{sentences}")
    for table in part.tables:
        cells = ([_code(label), *(_code(cell.text) for cell in cells)] for label, cells in table.lines)
        title = f"{'#' * (level + 1)} {_prose(table.title)}\n\n"
        yield _table([_prose(header) for header in table.headers], cells, len(table.lines), title)


def _parts(summary: Summary, sections: Sequence[Section]) -> Iterator[_Part]:
    header = summary.header
    name = f"{header.suite or 'run'}{f' with {header.kernel}' if header.kernel else ''}"
    yield _Part(f"# fa4verify: {_code(name)}\n\n**{summary.totals}.** {' '.join(summary.sentences)}".rstrip() + "\n\n")
    if summary.notes:
        notes = [f"- note: {_code(note)}\n" for note in summary.notes[:_NOTES]]
        yield _Part("".join(notes) + ("\n" if len(summary.notes) <= _NOTES else _more(len(summary.notes) - _NOTES)))
    counts = [(f"{SIGNS[status]} {status}", str(count)) for status, count in summary.counts.items()]
    yield _whole(["outcome", "cases"], [*counts, ("asked", str(summary.asked))])
    if missing := summary.counts["MISSING"]:
        yield _Part(
            f"The run ended before it was done: {missing} of {summary.asked} cases have no record (listed last).\n\n"
        )
    if failures := worst_first(summary):
        # Half of the room: the tables below tell of the others in a line each.
        yield _Part("## To look at\n\n", map(_failure, failures), len(failures), share=0.5)
    for part in sections:
        yield from _section(part, 2)
    yield from _tables("## Curves\n\n", summary.tables, study.LEGEND)
    yield from _tables("## Repeated runs\n\n", summary.repeats, repeats.LEGEND)
    yield _Part("## All cases\n\n")
    for operation, rows in summary.operations.items():
        yield _cases(operation, rows)
    if any(row.operation == "forward" for row in summary.rows):
        yield _Part(f"{measures.LEGEND.replace('*', chr(92) + '*').replace('|', chr(92) + '|')}\n\n")
    if any(row.operation == "repeat" for row in summary.rows):
        yield _Part(f"{measures.REPEAT_LEGEND.replace('<', chr(92) + '<')}\n\n")
    if summary.slowest:
        slow = [(_code(row.id), seconds(row.seconds)) for row in summary.slowest]
        yield _whole(["case", "time"], slow, "## Slowest cases\n\n")
    yield from _environment(summary)


def _tables(heading: str, tables: Sequence[Table], legend: str) -> Iterator[_Part]:
    if not tables:
        return
    yield _Part(heading)
    for table in tables:
        cells = ([_code(label), *(cell.text for cell in cells)] for label, cells in table.lines)
        yield _table(
            [_code(header) for header in table.headers], cells, len(table.lines), f"### {_code(table.title)}\n\n"
        )
    yield _Part(f"{legend}\n\n")


def _failure(row: Row) -> str:
    lines = [page.block(finding.message) for finding in row.findings if not finding.passed]
    told = "\n".join([*lines, *([f"rerun: {page.block(row.command)}"] if row.command else [])])
    return f"### {SIGNS[row.status]} {row.status} {_code(row.id)}\n\n{_fence(told)}\n"


def _cases(operation: str, rows: Sequence[Row]) -> _Part:
    titles = [measure.title for measure in MEASURES.get(operation, ())]
    headers = ["verdict", operation or "not recorded", "kernel", "dtype", *titles, "what decided"]
    lines = (
        [
            f"{SIGNS[row.status]} {row.status}",
            _code(row.id),
            _code(row.kernel),
            row.dtype or "-",
            *(measure.show(value) for measure, value in row.figures),
            _code(row.decisive.partition("; ")[0]),
        ]
        for row in sorted(rows, key=lambda row: _WORST_FIRST.index(row.status))
    )
    return _table(headers, lines, len(rows))


def _environment(summary: Summary) -> Iterator[_Part]:
    header = summary.header
    facts = {
        "fa4verify": header.version,
        "commit": header.commit or "unknown",
        "date": header.date.isoformat(timespec="seconds"),
        "machine": header.machine or "unknown",
        **header.fingerprint,
    }
    yield _Part("<details><summary>Environment</summary>\n\n")
    yield _whole(["what", "value"], [(_code(name), _code(value)) for name, value in list(facts.items())[:_FACTS]])
    yield _Part("</details>\n\n")
    if header.suite:
        yield _Part(f"## Rerun\n\n{_fence(page.text(shlex.join(header.command(header.select)), 4000))}\n")


def _table(headers: Sequence[str], lines: Iterable[Sequence[str]], count: int, heading: str = "") -> _Part:
    head = f"{heading}{_row(headers)}\n{_row(['---'] * len(headers))}\n"
    return _Part(head, (f"{_row(line)}\n" for line in lines), count, "\n")


def _whole(headers: Sequence[str], lines: Iterable[Sequence[str]], heading: str = "") -> _Part:
    """Return a table that is never cut: a few lines of bounded length."""
    part = _table(headers, lines, 0, heading)
    return _Part("".join((part.head, *part.entries, part.tail)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    """Return a code span that holds the text on one line, or a dash."""
    text = page.text(text)
    if not text:
        return "-"
    ticks = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _prose(text: str) -> str:
    """Return a sentence in which no character is markup."""
    return re.sub(r"([\\`*_\[\]<>#!|~&])", r"\\\1", one_line(text))


def _fence(text: str) -> str:
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}text\n{text}\n{ticks}\n"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
