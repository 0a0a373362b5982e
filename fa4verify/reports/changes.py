"""A Comparison as text: for a terminal, as Markdown, as a part of the HTML page.

Contract: one view model, `section` (sentences, then tables), from which all three are made, so that no reader is told
less; regressions stand first, and a table is cut after `most` lines with the number of those left out. Foreign text is
one printable line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from fa4verify.reports import markdown, page, terminal
from fa4verify.reports.study import Cell, Table
from fa4verify.reports.text import NONE, digits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from fa4verify.reports.history import Change, Comparison, Drift, Drifted
    from fa4verify.runs import RunHeader

MOST, ON_A_TERMINAL = 200, 20
FIGURES = 10  # of one case, in a test's failure text
_OUTCOME = {"worse": "FAIL", "better": "PASS", "other": "INCONCLUSIVE"}
_WORD = {"worse": "worse", "better": "better", "other": "changed"}
LEGEND = (
    "may move: how far the figure reaches over the seeds of the case, or how far a truth computed on another kind of "
    "machine can move it; 0: it is reproduced to the bit. worse: further from 0; changed: a figure of which neither "
    "side is better, of the problem, the baseline kernel or what was done."
)


def section(comparison: Comparison, *, most: int = MOST) -> page.Section:
    """Return the comparison as sentences and tables."""
    legend = (LEGEND,) if comparison.drifted else ()
    return page.Section("What changed", (*_sentences(comparison), *legend), tuple(_tables(comparison, most)))


def headline(comparison: Comparison) -> str:
    """Return what changed in one sentence."""
    worse = len(comparison.worse)
    parts = [
        (len(comparison.broken), "new failures", "new failure"),
        (len(comparison.unchecked), "tensors no longer checked", "tensor no longer checked"),
        (worse, "drifted for the worse", ""),
        (len(comparison.drifted) - worse, "drifted otherwise", ""),
        (len(comparison.fixed), "fixed", ""),
        (len(comparison.appeared), "appeared", ""),
        (len(comparison.vanished), "vanished", ""),
    ]
    told = [f"{count} {(one or many) if count == 1 else many}" for count, many, one in parts if count]
    cases = "case" if comparison.paired == 1 else "cases"
    lost = "Cases lost" if comparison.vanished else "No regression"
    verdict = "Regressed" if comparison.regressed else "Drifted" if comparison.drifted else lost
    return f"{verdict}: {', '.join(told) or 'nothing changed'}; {comparison.paired} {cases} in both runs."


def departures(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    """Return for each case that departs from a baseline what does, a line each: for a test's failure text."""
    found: dict[str, list[str]] = {}
    for change in (*comparison.broken, *comparison.unchecked):
        judged = change.after in ("FAIL", "INCONCLUSIVE", "CRASHED", "TIMEOUT")  # then the findings tell why
        why = "" if judged or not change.why else f": {page.text(change.why.partition('; ')[0])}"
        told = f"baseline: was {page.text(change.before)}, is {page.text(change.after)}{why}"
        found.setdefault(change.id, []).append(told)
    for case in comparison.drifted:
        lines = found.setdefault(case.id, [])
        lines += [f"baseline: {_told(figure)}" for figure in case.figures[:FIGURES]]
        if len(case.figures) > FIGURES:
            lines.append(f"baseline: and {len(case.figures) - FIGURES} more figures")
    return {name: tuple(lines) for name, lines in found.items()}


def _told(figure: Drift) -> str:
    old, new = _apart(figure.old, figure.new)
    name = page.text(f"{figure.tensor} {figure.metric}")
    return f"{name} was {old}, is {new}, may move {digits(figure.allowed)}: {_WORD[figure.direction]}"


def render(comparison: Comparison, *, console: Console | None = None) -> None:
    """Print the comparison, the headline last, where a terminal leaves the eye."""
    console = console or terminal.screen()
    for table in _tables(comparison, ON_A_TERMINAL):
        _print(console, table)
    if comparison.drifted:
        console.print(Text(LEGEND, "dim"))
    console.print()
    first, *others = _sentences(comparison)
    for sentence in (*others, first):
        console.print(Text(sentence), soft_wrap=True)


def _print(console: Console, table: Table) -> None:
    """Print a table line by line: an id folded into a column could be neither read nor copied."""
    console.print(Text(f"\n{table.title}", "bold"))
    for label, cells in table.lines:
        told = Text("  ")
        for header, cell in zip(table.headers[1:], cells, strict=True):
            told.append("" if len(told) == 2 else "; ")
            told.append(f"{header} ", "dim").append(cell.text or NONE, terminal.COLOURS.get(cell.outcome, ""))
        if len(label) + len(told) + 2 <= console.width:
            console.print(Text.assemble("  ", label, told), soft_wrap=True)
        else:
            console.print(Text(f"  {label}"), soft_wrap=True)
            console.print(Text.assemble("  ", told), soft_wrap=True)


def _sentences(comparison: Comparison) -> Iterator[str]:
    yield headline(comparison)
    yield f"From {_run(comparison.old)} to {_run(comparison.new)}."
    how = "to the bit" if comparison.same_sums else "to what the float64 truth of another kind of machine can move them"
    said = f"{comparison.compared} figures were compared, {how}"
    if comparison.moved:
        said += f"; {comparison.moved} moved by less than the seeds of their case differ"
    if comparison.incomparable:
        said += f"; {comparison.incomparable} can be compared on one kind of machine only"
    yield f"{said}."
    if comparison.failing:
        count = len(comparison.failing)
        yield f"{count} {'case fails' if count == 1 else 'cases fail'} as before."


def _run(header: RunHeader) -> str:
    where = f" on {header.machine}" if header.machine else ""
    return page.text(f"{header.commit or 'an unknown commit'} of {header.date:%Y-%m-%d %H:%M}Z{where}")


def _tables(comparison: Comparison, most: int) -> Iterator[Table]:
    yield from _changes("New failures", comparison.broken, most, "FAIL")
    yield from _changes("No longer checked", comparison.unchecked, most, "FAIL")
    yield from _drifts(comparison.drifted, most)
    yield from _changes("Fixed", comparison.fixed, most, "PASS")
    turned = tuple(change for change in comparison.failing if change.before != change.after)
    yield from _changes("Failing as before, in another way", turned, most, "FAIL")
    yield from _changes("Appeared", comparison.appeared, most, "")
    yield from _changes("Vanished", comparison.vanished, most, "INCONCLUSIVE")
    limits = [
        (page.text(name), (Cell(page.text(old)), Cell(page.text(new)), Cell(str(count))))
        for (name, old, new), count in comparison.limits.items()
    ]
    yield from _cut("Limits that are other ones now", ("limit", "before", "after", "cases"), limits, most)
    facts = [
        (page.text(name), (Cell(page.text(old)), Cell(page.text(new)))) for name, old, new in comparison.environment
    ]
    yield from _cut("Environment", ("what", "before", "after"), facts, most)


def _changes(title: str, changes: Sequence[Change], most: int, outcome: str) -> Iterator[Table]:
    lines = [
        (
            page.text(change.id),
            (Cell(change.before), Cell(change.after, outcome), Cell(page.text(change.why.partition("; ")[0]))),
        )
        for change in changes[:most]
    ]
    yield from _cut(title, ("case", "before", "after", "why"), lines, most, len(changes))


def _drifts(cases: Sequence[Drifted], most: int) -> Iterator[Table]:
    lines = [(page.text(case.id), _cells(case.figures[0], len(case.figures) - 1)) for case in cases[:most]]
    headers = ("case", "figure", "before", "after", "may move", "is", "further figures")
    yield from _cut("Drifted", headers, lines, most, len(cases))


def _cells(figure: Drift, further: int) -> tuple[Cell, ...]:
    old, new = _apart(figure.old, figure.new)
    return (
        Cell(page.text(f"{figure.tensor} {figure.metric}")),
        Cell(old),
        Cell(new),
        Cell(digits(figure.allowed)),
        Cell(_WORD[figure.direction], _OUTCOME[figure.direction]),
        Cell(str(further)),
    )


def _apart(old: float, new: float | None) -> tuple[str, str]:
    """Show two numbers with as many digits as tell them apart: the last bit of a float64 needs 17."""
    if new is None:
        return digits(old), "not measured"
    for significant in (3, 6, 9, 13, 17):
        shown = digits(old, significant), digits(new, significant)
        if shown[0] != shown[1]:
            break
    return shown


def _cut(
    title: str,
    headers: tuple[str, ...],
    lines: Sequence[tuple[str, tuple[Cell, ...]]],
    most: int,
    count: int | None = None,
) -> Iterator[Table]:
    count = len(lines) if count is None else count
    if count:
        told = f"{title}: {count}" if count <= most else f"{title}: {count}, the first {most} of them"
        yield Table(told, headers, tuple(lines[:most]))


def render_markdown(comparison: Comparison) -> str:
    """Return the comparison as one Markdown document."""
    return markdown.section(section(comparison), level=1)
