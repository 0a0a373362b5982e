"""A suite of points -> curves as tables.

Contract: a table for each combination of `Study.tables`, a line for each value of `Study.rows`, a column for each
combination of `Study.columns` and each of `Study.values` that some point of the table has, followed by its ratio to the
line `Study.relative_to` where the value is a metric; behind the first value stand the published figure, the deviation
from it and the spread over the cases of the point, where the study has published figures. A point without a record is
empty; points of several cases (seeds, say) are their mean. Order is that in which the suite asks.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fa4verify.reports.measures import activity, is_share, metric, ratio
from fa4verify.reports.text import NONE, digits, percent
from fa4verify.vocabulary import Distribution

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fa4verify.vocabulary import Case, Record, Study

# What stands behind a number of a point that did not pass; a point without a number shows its outcome.
MARKS = {"PASS": "", "SKIPPED": "", "FAIL": " !", "INCONCLUSIVE": " ?", "CRASHED": " !!", "TIMEOUT": " !!"}
BEYOND = " >"
LEGEND = (
    "! FAIL, ? INCONCLUSIVE, - no such point; /N: ratio to the line N; > FP8 beyond the safe budget: threshold + "
    "offset is more than log2 of the largest P."
)
# log2 of the largest number: what P may reach before it is clamped.
LARGEST = {"e4m3": math.log2(448.0), "e5m2": math.log2(57344.0)}

_WORST_LAST = ("PASS", "SKIPPED", "INCONCLUSIVE", "FAIL", "TIMEOUT", "CRASHED")


@dataclass(frozen=True)
class Cell:
    """One number of a point, and the worst outcome of the cases behind it ("" where there are none)."""

    text: str
    outcome: str = ""


@dataclass(frozen=True)
class Table:
    """A curve as a table: `headers[0]` names the lines; every line is its label and one cell for each other header."""

    title: str
    headers: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]


def tables(study: Study, records: Iterable[Record]) -> tuple[Table, ...]:
    """Pivot the records of a study; nothing to pivot gives no table."""
    points: dict[tuple[Any, ...], list[Record]] = {}
    titles: dict[tuple[str, ...], None] = {}
    columns: dict[tuple[str, ...], None] = {}
    lines: dict[str, Any] = {}  # label -> value
    for record in records:
        title = tuple(label(record.case, path) for path in study.tables)
        column = tuple(label(record.case, path) for path in study.columns)
        line = label(record.case, study.rows)
        titles[title], columns[column], lines[line] = None, None, value_at(record.case, study.rows)
        points.setdefault((title, column, line), []).append(record)
    relative = study.relative_to
    base = next((label for label, line in lines.items() if relative is not None and line == relative), None)
    return tuple(_table(study, points, title, list(columns), list(lines), base) for title in titles)


def value_at(case: Case, path: str) -> Any:
    """Follow a dotted path into a Case; None where it leads nowhere."""
    value: Any = case
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def _table(
    study: Study,
    points: dict[tuple[Any, ...], list[Record]],
    title: tuple[str, ...],
    columns: list[tuple[str, ...]],
    labels: list[str],
    base: str | None,
) -> Table:
    headers, used = [study.rows.rpartition(".")[2]], [column for column in columns if _occurs(points, title, column)]
    paths = _told(study, points, title)
    for column in used:
        for path in paths:
            headers.append(" ".join((*column, path)))
            if study.published and path == study.values[0]:
                headers.extend(("published", "deviation", "over cases"))
            headers.extend([f"/{base}"] if base is not None and _is_metric(path) else [])
    lines = []
    for label in labels:
        cells: list[Cell] = []
        for column in used:
            here, there = points.get((title, column, label), []), points.get((title, column, base), [])
            for path in paths:
                value = _mean(here, path)
                cells.append(_cell(here, value, path))
                if study.published and path == study.values[0]:
                    cells.extend(_beside(study.published.get(label), value, _each(here, path), cells[-1].outcome))
                if base is not None and _is_metric(path):
                    cells.append(Cell(digits(ratio(value, _mean(there, path)), 4), cells[-1].outcome))
        if any(cell.outcome for cell in cells):
            lines.append((label, tuple(cells)))
    parts = (f"{path.rpartition('.')[2]} {label}" for path, label in zip(study.tables, title, strict=True))
    return Table(", ".join(parts) or "all", tuple(headers), tuple(lines))


def _told(study: Study, points: dict[tuple[Any, ...], list[Record]], title: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values that some point of this table has: a table of forwards needs no columns for gradients."""
    here = [records for key, records in points.items() if key[0] == title]
    return (
        tuple(path for path in study.values if any(_mean(records, path) is not None for records in here))
        or study.values
    )


def _occurs(points: dict[tuple[Any, ...], list[Record]], title: tuple[str, ...], column: tuple[str, ...]) -> bool:
    return any(key[:2] == (title, column) for key in points)


def _beside(published: float | None, mean: float | None, each: list[float], outcome: str) -> list[Cell]:
    """Return the published figure, what the mean deviates from it, and the standard deviation over the cases."""
    if published is None or mean is None:
        return [Cell(NONE, outcome)] * 3
    spread = statistics.stdev(each) / mean if len(each) > 1 and mean else None
    shown = NONE if spread is None else f"{spread:.1%}"
    return [Cell(digits(published), outcome), Cell(f"{mean / published - 1:+.1%}", outcome), Cell(shown, outcome)]


def _each(records: list[Record], path: str) -> list[float]:
    kind, _, name = path.partition(".")
    if kind == "activity":
        values = [activity(item, name) for item in records]
    elif "/" in name:
        part, whole = name.split("/", 1)
        values = [ratio(metric(item, kind, part), metric(item, kind, whole)) for item in records]
    else:
        values = [metric(item, kind, name) for item in records]
    return [value for value in values if value is not None]


def _mean(records: list[Record], path: str) -> float | None:
    numbers = _each(records, path)
    return math.fsum(numbers) / len(numbers) if numbers else None


def _cell(records: list[Record], value: float | None, path: str) -> Cell:
    if not records:
        return Cell(NONE)
    outcome = max((item.verdict.outcome for item in records), key=_WORST_LAST.index)
    if value is None:
        return Cell(NONE if outcome == "PASS" else outcome, outcome)
    show = percent if is_share(path.partition(".")[2]) else digits
    beyond = BEYOND if any(_beyond(item.case) for item in records) else ""
    return Cell(show(value) + beyond + MARKS[outcome], outcome)


def _beyond(case: Case) -> bool:
    """Return whether a case asks for a P that its 8-bit format does not hold: 2^(threshold + offset)."""
    asked = [case.options.get(name, default) for name, default in (("rescale_threshold", 0.0), ("max_offset", 8.0))]
    return case.dtype in LARGEST and sum(asked) > LARGEST[case.dtype]


def _is_metric(path: str) -> bool:
    return not path.startswith("activity.")


def label(case: Case, path: str) -> str:
    """Return what stands for the value at a path of a Case in a table."""
    value = value_at(case, path)
    if isinstance(value, Distribution):
        arguments = ", ".join(f"{name}={argument}" for name, argument in value.arguments.items())
        return f"{value.name}({arguments})" if arguments else value.name
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)
