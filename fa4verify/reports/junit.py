"""JUnit XML for a CI server (Jenkins' junit-10.xsd, which GitLab's reader is a part of).

Contract: one testcase for each case asked for, and the suite's counts are those of its testcases. What did not pass
never looks passed:

  PASS                     a bare testcase
  FAIL                     failure; in a study, where it is a point of a curve, skipped
  INCONCLUSIVE             failure of type INCONCLUSIVE: a gate that could not say must not turn green
  SKIPPED                  skipped, with the reason
  CRASHED TIMEOUT MISSING  error

With a comparison to a baseline, a case that departs from it (a figure that drifted, a check that is gone, a SKIPPED
that was none) is a failure of type DRIFTED, and a baseline of which no case was run is a testcase of its own, an error.

Every figure is a property of its testcase, `tensor.metric`, as pytest's record_property writes them and Jenkins reads
them; junit-10.xsd, older than both, knows properties of a suite only, and GitLab passes over them. The findings are the
text of the failure, each 2000 characters at most. Characters that XML 1.0 cannot hold, not even escaped, are written as
backslash escapes.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from fa4verify.reports import changes, page
from fa4verify.reports.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fa4verify.reports.history import Comparison
    from fa4verify.reports.summary import Row, Summary
    from fa4verify.vocabulary import Record

TAGS = {
    "FAIL": "failure",
    "INCONCLUSIVE": "failure",
    "SKIPPED": "skipped",
    "CRASHED": "error",
    "TIMEOUT": "error",
    "MISSING": "error",
}

# A path of files or a list of devices fits; a message of 100 kB is cut.
_LONGEST = 1000


def render(summary: Summary, comparison: Comparison | None = None) -> str:
    """Return the XML document; with a comparison, what departs from the baseline fails."""
    header = summary.header
    name = header.suite or "run"
    departed = changes.departures(comparison) if comparison else {}
    tags = ["skipped" if summary.is_point(row) else TAGS.get(row.status) for row in summary.rows]
    news = [_news(row, tag, departed.get(row.id, ())) for row, tag in zip(summary.rows, tags, strict=True)]
    found = [item[0] if item else None for item in news]
    lost = comparison.vanished if comparison and comparison.paired else ()
    found += ["error"] * (len(lost) + (comparison is not None and not comparison.paired))
    counts = {
        "tests": str(len(found)),
        "failures": str(found.count("failure")),
        "errors": str(found.count("error")),
        "time": f"{sum(row.seconds for row in summary.rows):.3f}",
    }
    root = ET.Element("testsuites", _clean({"name": "fa4verify", **counts}))
    facts = {"name": name, **counts, "skipped": str(found.count("skipped"))}
    facts |= {"timestamp": f"{header.date:%Y-%m-%dT%H:%M:%S}", "hostname": header.machine or "unknown"}
    suite = ET.SubElement(root, "testsuite", _clean(facts))
    properties = ET.SubElement(suite, "properties")
    for key, value in _facts(summary):
        ET.SubElement(properties, "property", _clean({"name": key, "value": value}))
    if comparison:
        ET.SubElement(properties, "property", _clean({"name": "baseline", "value": changes.headline(comparison)}))
    for row, told in zip(summary.rows, news, strict=True):
        _testcase(suite, row, f"fa4verify.{name}", told, departed.get(row.id, ()))
    for change in lost:
        facts = {"name": change.id, "classname": f"fa4verify.{name}", "time": "0.000"}
        case = ET.SubElement(suite, "testcase", _clean(facts))
        ET.SubElement(case, "error", {"type": "VANISHED", "message": "a case of the baseline that this run lacks"})
    if comparison and not comparison.paired:
        case = ET.SubElement(suite, "testcase", {"name": "baseline", "classname": f"fa4verify.{name}", "time": "0.000"})
        ET.SubElement(case, "error", {"type": "DRIFTED", "message": "no case of the baseline was run"})
    if summary.notes:
        ET.SubElement(suite, "system-err").text = _legal("\n".join(map(page.block, summary.notes)))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    header = summary.header
    yield "fa4verify", header.version
    yield "commit", header.commit or "unknown"
    yield "kernel", header.kernel or "as in the suite"
    yield "totals", summary.totals
    if summary.fa_rule_sentence:
        yield "FlashAttention's rule", summary.fa_rule_sentence
    if summary.unchecked_sentence:
        yield "unchecked", summary.unchecked_sentence
    yield from header.fingerprint.items()


def _news(row: Row, tag: str | None, departed: Sequence[str]) -> tuple[str, str, str] | None:
    """Return element, type and message of what a testcase holds, None of what passed.

    What departs from a baseline has not passed, nor may it hide behind a skip.
    """
    if departed and tag in (None, "skipped"):
        return "failure", "DRIFTED", departed[0]
    point = "a point of a study, FAIL: " if tag == "skipped" and row.status == "FAIL" else ""
    return None if tag is None else (tag, row.status, point + row.decisive)


def _testcase(
    suite: ET.Element, row: Row, classname: str, news: tuple[str, str, str] | None, departed: Sequence[str]
) -> None:
    facts = {"name": row.id, "classname": classname, "time": f"{row.seconds:.3f}"}
    case = ET.SubElement(suite, "testcase", _clean(facts))
    if row.record is not None:
        properties = ET.SubElement(case, "properties")
        for name, value in _figures(row.record):
            ET.SubElement(properties, "property", _clean({"name": name, "value": value}))
    if news is not None:
        tag, kind, message = news
        lines = [page.block(finding.message) for finding in row.findings if not finding.passed]
        lines += [*departed, *([f"rerun: {page.block(row.command)}"] if row.command else [])]
        ET.SubElement(case, tag, _clean({"type": kind, "message": message})).text = _legal("\n".join(lines))


def _figures(record: Record) -> Iterator[tuple[str, str]]:
    """Yield what the record holds, numbers to the bit."""
    yield "verdict", record.verdict.outcome
    yield "seed", str(record.case.seed)
    for tensor, measured in record.metrics.items():
        yield from ((f"{tensor}.{name}", repr(value)) for name, value in measured.values.items())
    for tensor, measured in record.baseline.items():
        yield from ((f"baseline.{tensor}.{name}", repr(value)) for name, value in measured.values.items())
    yield from ((f"activity.{name}", repr(value)) for name, value in record.activity.items())
    yield from ((f"checked.{name}", said) for name, said in record.checked.items())
    yield from ((f"provenance.{name}", said) for name, said in record.provenance.items())


def _clean(facts: dict[str, str]) -> dict[str, str]:
    return {name: _legal(page.text(value, _LONGEST)) for name, value in facts.items()}


def _legal(text: str) -> str:
    """Escape what XML 1.0 forbids: control characters, lone surrogates, U+FFFE and U+FFFF."""
    return re.sub("[\ufffe\uffff]", lambda match: ascii(match[0])[1:-1], printable(text))
