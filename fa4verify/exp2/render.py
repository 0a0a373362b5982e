"""The report of `exp2 check` for a terminal, a document and a program.

Contract: three views of one Report; numbers that matter appear in hex beside their decimals. The JSON has every field
of the Report, infinities as text, and the set in the form that `sets.parse` reads.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fa4verify.exp2.sets import hex_float
from fa4verify.reports.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fa4verify.exp2.check import Bin, Report
    from fa4verify.exp2.findings import Finding
    from fa4verify.exp2.measures import Summary

_COLOURS = {"fail": "bold red", "note": "yellow"}
_HEADERS = ("range", "uniform in", "max relative", "at x", "RMSE", "mean", "bf16", "fp16", "e4m3")
_MEASURES = {"x": "x", "f": "f", "attention": "attention*"}
_LEGEND = (
    "bf16, fp16, e4m3: share of results whose rounding is not that of 2^x. Measures: each x its length; each fraction "
    "once; * as 1024 standard normal scores of a row give x."
)


def terminal(report: Report, console: Console) -> None:
    """Print the report; findings come last, failures at the very end."""
    chosen = report.chosen
    head = f"{one_line(chosen.name)}: degree {chosen.degree}, range {chosen.range_reduction}, {report.form}"
    console.print(Text(head, "bold"), soft_wrap=True)
    for k, (value, word) in enumerate(zip(chosen.coefficients, chosen.hex, strict=True)):
        console.print(Text(f"  p{k} = {word}  ({value:.9g})"))
    console.print()
    console.print(_table(_HEADERS, [_row(summary) for summary in report.summaries]))
    console.print(Text(_LEGEND, "dim"))
    console.print()
    lines = [(_bounds(each), f"{each.inputs}", f"{each.share:.4%}") for each in report.histogram]
    console.print(_table((f"error in ulp, x in [-126, {report.tau})", "inputs", "share of x"), lines))
    console.print()
    for line in _sentences(report):
        console.print(Text(line), soft_wrap=True)
    for finding in sorted(report.findings, key=lambda each: each.severity, reverse=True):
        console.print(
            Text.assemble((finding.severity.upper(), _COLOURS[finding.severity]), f" {finding.message}"), soft_wrap=True
        )
    console.print(Text(_last(report), "bold red" if report.failed else "green"), soft_wrap=True)


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    chosen = report.chosen
    parts = [
        f"# {_cell(chosen.name)}\n",
        f"Degree {chosen.degree}, range {chosen.range_reduction}, {report.form}. {_cell(chosen.provenance)}\n",
        _lines(("", "hex", "decimal"), [
            (f"p{k}", word, f"{value:.9g}")
            for k, (value, word) in enumerate(zip(chosen.coefficients, chosen.hex, strict=True))
        ]),
        _lines(_HEADERS, [_row(summary) for summary in report.summaries]),
        _LEGEND.replace("*", "\\*") + "\n",
        _lines(
            (f"error in ulp, x in [-126, {report.tau})", "inputs", "share of x"),
            [(_bounds(each), f"{each.inputs}", f"{each.share:.4%}") for each in report.histogram],
        ),
        _lines(
            ("x", "result", "bits", "wanted", ""),
            [
                (each.x, each.got, f"{each.got_bits:08x}", each.wanted, "" if each.passed else "differs")
                for each in report.specials
            ],
        ),
        "\n".join(f"- {line}" for line in _sentences(report)) + "\n",
        "\n".join(_bullet(finding) for finding in report.findings) + "\n",
        _last(report),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def as_json(report: Report) -> str:
    """Return every field as JSON."""
    content = dataclasses.asdict(report)
    chosen = report.chosen
    content["set"] = {
        "name": chosen.name,
        "coefficients": list(chosen.hex),
        "range": chosen.range_reduction,
        "provenance": chosen.provenance,
    }
    del content["chosen"]
    content["failed"] = report.failed
    first = report.first_failing_special
    content["first_failing_special"] = first.x if first else None
    for summary in content["summaries"]:
        summary["worst_x"] = hex_float(_x(summary["worst_bits"]))
    return json.dumps(_plain(content), indent=1)


def _x(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def _row(summary: Summary) -> tuple[str, ...]:
    return (
        summary.name,
        _MEASURES[summary.measure],
        f"{summary.worst:+.4e}",
        f"{_x(summary.worst_bits):.6g} = {hex_float(_x(summary.worst_bits))}",
        f"{summary.rmse:.4e}",
        f"{summary.mean:+.3e}",
        *(f"{100 * share:.3g}%" for share in summary.mismatches.values()),
    )


def _sentences(report: Report) -> list[str]:
    seams, first = report.seams, report.first_failing_special
    where = "integers" if report.chosen.range_reduction == "floor" else "half integers"
    special = f"{first.x} gives {first.got}, wanted {first.wanted}" if first else "none"
    return [
        f"steps down inside octaves: {report.steps_down_inside}; at {where}: {seams.down}",
        f"jump at {where}: {seams.smallest:+d} ulp (x = {seams.smallest_at:g}) to {seams.largest:+d} ulp "
        f"(x = {seams.largest_at:g})",
        f"first failing special value: {special}",
    ]


def _bounds(each: Bin) -> str:
    def show(edge: float) -> str:
        return f"{edge:g}" if abs(edge) < 2**20 else f"{'-' if edge < 0 else ''}2^{math.log2(abs(edge)):g}"

    if each.low == -math.inf:
        return f"below {show(each.high)}"
    return f"{show(each.low)} and more" if each.high == math.inf else f"{show(each.low)} to {show(each.high)}"


def _last(report: Report) -> str:
    failures = sum(finding.severity == "fail" for finding in report.findings)
    verdict = f"FAIL: {failures} failing finding{'s' * (failures > 1)}" if failures else "no failing finding"
    return f"{verdict}; all {report.inputs} inputs in {report.seconds:.2g} s"


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for index, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _lines(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    rule = ["---", *["---:"] * (len(headers) - 1)]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in (headers, rule, *rows)) + "\n"


def _cell(text: str) -> str:
    """Keep a text, such as a user's name of a set, inside its cell."""
    return one_line(text).replace("|", "\\|")


def _bullet(finding: Finding) -> str:
    return f"- **{finding.severity}** ({finding.kind}): {finding.message}"


def _plain(value: Any) -> Any:
    """Make a value one that JSON has."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
