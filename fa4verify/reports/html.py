"""The report as one HTML file, for whoever was not there: verdict, failures, tables, figures, limits, environment.

Contract: self-contained (the Content-Security-Policy forbids every request and every script but its own), readable
without script, on paper and in the dark. Everything foreign goes through Jinja's autoescape; the script holds no data.
Same run, same bytes: no clock, no path. `script` sorts, filters and keeps long tables short; without it all rows show.
Known limit: 10,000 cases are 4 to 6 MB, of which a browser without script lays out every row.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fa4verify.reports import meanings, measures, page, repeats, study
from fa4verify.reports.figures import figures
from fa4verify.reports.measures import MEASURES
from fa4verify.reports.patterns import patterns
from fa4verify.reports.summary import STATUSES, WORDS, exit_code
from fa4verify.reports.text import digits, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jinja2 import Template

    from fa4verify.reports.figures import Figure
    from fa4verify.reports.summary import Summary
    from fa4verify.vocabulary import Record

# Long tables are not laid out before the script has cut them.
_EARLY = "document.documentElement.className = 'js'"
_NAMED = 5
_VERDICTS = {0: ("PASS", "Passed"), 1: ("FAIL", "Failed"), 3: ("INCONCLUSIVE", "Not proven")}


def render(summary: Summary, *, sections: Sequence[page.Section] = (), drawn: Iterable[Figure] | None = None) -> str:
    """Return the document.

    Parameters
    ----------
    summary
        The run.
    sections
        What other modules have to say, after the failures: a comparison with another run, say.
    drawn
        The figures; by default those that the run's records fill.
    """
    records = [row.record for row in summary.rows if row.record is not None]
    style, script = _part("report.css"), _part("report.js")
    numbers = {id(row): number for number, row in enumerate(summary.rows, start=1)}
    status, word = _VERDICTS[exit_code(summary)]
    told, limits = page.failures(summary), page.limits(summary)
    return _template().render(
        summary=summary,
        header=summary.header,
        status=status,
        word=word,
        tested=tested(records),
        sections=sections,
        open_cards=page.OPEN,
        failures=told,
        told_rows={numbers[id(failure.row)] for failure in told},
        patterns=patterns(records),
        limits=limits,
        tightest=max((limit for limit in limits if limit.closest is not None), key=page.taken, default=None),
        kernels=page.kernels(summary),
        unchecked=page.unchecked(summary),
        not_run=page.not_run(summary),
        figures=tuple(figures(records) if drawn is None else drawn),
        operations=summary.operations,
        measures=MEASURES,
        meanings=meanings,
        legends={"study": study.LEGEND, "repeats": repeats.LEGEND, "repeat": measures.REPEAT_LEGEND},
        rerun=page.rerun(summary),
        statuses=[name for name in STATUSES if summary.counts[name]],
        words=WORDS,
        number=lambda row: numbers[id(row)],
        columns=page.columns,
        only_kernel=page.only_kernel,
        closest=page.closest,
        share=page.share,
        digits=digits,
        seconds=seconds,
        total_seconds=sum(row.seconds for row in summary.rows),
        style=style,
        script=script,
        early=_EARLY,
        early_hash=_hash(_EARLY),
        script_hash=_hash(script),
    )


def tested(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return what was tested, as names and values: kernels, operations, dtypes, inputs and the largest problem."""
    if not records:
        return []
    cases = [record.case for record in records]
    attention = [case for case in cases if case.operation != "exp2"]
    names = list(dict.fromkeys(case.kernel for case in cases))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    facts = [
        ("kernel" if len(names) == 1 else "kernels", page.text(", ".join(names[:_NAMED])) + more),
        ("operations", ", ".join(dict.fromkeys(case.operation for case in cases))),
        ("inputs", _counted(len({case.distribution.name for case in cases}), "distribution")),
    ]
    if attention:
        shapes = [case.shape for case in attention]
        facts.insert(2, ("dtypes", ", ".join(dict.fromkeys(case.dtype for case in attention))))
        facts += [
            ("queries", _range(shape.seqlen_q for shape in shapes)),
            ("keys", _range(shape.seqlen_k for shape in shapes)),
            ("head dims", ", ".join(map(str, sorted({shape.head_dim for shape in shapes})))),
        ]
    return facts


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _hash(script: str) -> str:
    """Return what a Content-Security-Policy knows a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _anchor(name: str) -> str:
    """Return a fragment for foreign text: letters and digits of it, and a digest that keeps two of them apart."""
    digest = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', name[:60])}-{digest}"


@cache
def _template() -> Template:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True, loader=FunctionLoader(_part), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters: dict[str, Any] = {"text": page.text, "block": page.block, "anchor": _anchor}
    environment.filters.update(filters)
    return environment.get_template("report.html.j2")


@cache
def _part(name: str) -> str:
    return files("fa4verify.reports").joinpath("templates", name).read_text(encoding="utf-8")
