"""The verdict table for whoever started the run.

Contract: what needs a reader comes last, with its findings beneath and the command that reruns it; nothing that a
kernel put into a message can colour the terminal or move its cursor, nor fill it: ids are cut after 300 characters,
messages after 2000. Colour only on a terminal (rich honours NO_COLOR). A pipe or a log has WIDTH columns.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fa4verify.reports import measures, page, repeats, study
from fa4verify.reports.measures import MEASURES
from fa4verify.reports.text import one_line, printable, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fa4verify.reports.summary import Row, Summary

COLOURS = {
    "PASS": "green",
    "FAIL": "bold red",
    "INCONCLUSIVE": "yellow",
    "SKIPPED": "dim",
    "CRASHED": "bold magenta",
    "TIMEOUT": "bold magenta",
    "MISSING": "yellow",
}

_WORST_LAST = ("PASS", "SKIPPED", "INCONCLUSIVE", "TIMEOUT", "CRASHED", "FAIL")
_NAMED = 5
WIDTH = 100


def screen(stream: TextIO | None = None) -> Console:
    """Return what to print on: a terminal as wide as it is, anything else WIDTH columns or COLUMNS."""
    console = Console(file=stream)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


def next_step(summary: Summary, run: Path, baseline: Path | None = None) -> str:
    """Return the one command to run next: what failed once more, what drifted in full, or the page to read."""
    if summary.failures:
        return f"next: {page.rerun(summary)}"
    words = ["fa4verify", "diff", baseline, run] if baseline else ["fa4verify", "report", run]
    html = Path("changes.html" if baseline else "report.html")
    return f"next: {printable(shlex.join([*map(str, words), '--html', str(html)]))}"


def render(summary: Summary, *, files: Sequence[Path] = (), console: Console | None = None) -> None:
    """Print the verdict tables or, of a study, its curves; then what failed, the totals, and where the files are."""
    console = console or screen()
    if summary.is_study:
        for table in summary.tables:
            console.print(_study(table))
        console.print(Text(study.LEGEND, "dim"))
    else:
        for operation, rows in summary.operations.items():
            if operation:
                _verdicts(console, operation, rows)
                console.print()
        if any(row.operation == "forward" for row in summary.rows):
            console.print(Text(measures.LEGEND, "dim"))
        if any(row.operation == "repeat" for row in summary.rows):
            console.print(Text(measures.REPEAT_LEGEND, "dim"))
    for table in summary.repeats:
        console.print(_study(table))
    if summary.repeats:
        console.print(Text(repeats.LEGEND, "dim"))
    _reasons(console, summary.rows)
    for row in summary.failures:
        if row.status != "MISSING":
            _failure(console, row)
    for note in summary.notes:
        console.print(Text(f"note: {page.text(note)}", "yellow"))
    console.print()
    console.print(Text(one_line(summary.headline), _colour(summary)))
    for sentence in summary.sentences:
        console.print(Text(one_line(sentence)))
    if summary.slowest:
        slow = ", ".join(f"{page.text(row.id)} {seconds(row.seconds)}" for row in summary.slowest[:3])
        console.print(Text(f"slowest: {slow}", "dim"))
    for path in files:
        console.print(Text(f"written: {printable(str(path))}"), soft_wrap=True)


def _verdicts(console: Console, operation: str, rows: Sequence[Row]) -> None:
    """Print one table; a column in which nobody has a figure is left out.

    A case whose id does not fit beside its figures takes two lines: folded into fragments it can be neither read nor
    copied.
    """
    shown = [
        index for index in range(len(MEASURES[operation])) if any(row.figures[index][1] is not None for row in rows)
    ]
    rows = sorted(rows, key=lambda row: _WORST_LAST.index(row.status))
    titles = [MEASURES[operation][index].title for index in shown]
    figures = [[measure.show(value) for measure, value in (row.figures[index] for index in shown)] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *figures, strict=True)]
    verdict = max(len("verdict"), *(len(row.status) for row in rows))
    longest = max(len(operation), *(len(page.text(row.id)) for row in rows))
    room = min(longest, console.width - verdict - 2 - sum(width + 2 for width in widths))

    def printed(first: Text, name: str, values: Sequence[str], style: str) -> None:
        first.pad_right(verdict - len(first))
        first.append(f"  {name:{max(room, 0)}}", style)
        if len(name) > room:
            console.print(first, soft_wrap=True)
            first = Text(f"{'':{verdict}}  {'':{max(room, 0)}}")
        first.append("".join(f"  {value:>{width}}" for value, width in zip(values, widths, strict=True)), style)
        console.print(first, soft_wrap=True)

    printed(Text("verdict", "bold"), operation, titles, "bold")
    for row, values in zip(rows, figures, strict=True):
        printed(Text(row.status, COLOURS[row.status]), page.text(row.id), values, "")


def _study(curve: study.Table) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", title_justify="left")
    table.title = Text(f"\n{one_line(curve.title)}", "bold")
    for index, header in enumerate(curve.headers):
        table.add_column(Text(one_line(header)), justify="right" if index else "left", overflow="fold")
    for label, cells in curve.lines:
        shown = (Text(cell.text, "" if cell.outcome == "PASS" else COLOURS.get(cell.outcome, "dim")) for cell in cells)
        table.add_row(Text(one_line(label)), *shown)
    return table


def _failure(console: Console, row: Row) -> None:
    console.print()
    console.print(Text.assemble((row.status, COLOURS[row.status]), " ", (page.text(row.id), "bold")), soft_wrap=True)
    for finding in row.findings:
        if not finding.passed:
            console.print(Text("  " + page.block(finding.message).replace("\n", "\n  ")), soft_wrap=True)
    if row.command:
        console.print(Text(f"  rerun: {page.block(row.command)}", "cyan"), soft_wrap=True)


def _reasons(console: Console, rows: Sequence[Row]) -> None:
    """Say once for each reason what was skipped or is missing: after Ctrl-C, hundreds share one."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.status in {"SKIPPED", "MISSING"}:
            groups.setdefault((row.status, page.text(row.decisive)), []).append(row)
    for (status, reason), members in groups.items():
        console.print(Text.assemble("\n", (status, COLOURS[status]), f" {len(members)}: {reason}"), soft_wrap=True)
        for row in members[:_NAMED]:
            console.print(Text(f"  {page.text(row.id)}"), soft_wrap=True)
        if len(members) > _NAMED:
            console.print(Text(f"  and {len(members) - _NAMED} more"))


def _colour(summary: Summary) -> str:
    statuses = {row.status for row in summary.failures}
    if statuses & {"FAIL", "CRASHED", "TIMEOUT"}:
        return COLOURS["FAIL"]
    return COLOURS["INCONCLUSIVE"] if statuses or summary.notes or not summary.asked else COLOURS["PASS"]
