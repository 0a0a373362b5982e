"""No renderer loses a case: asked = the sum of all outcomes, in every report of the same run."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fa4verify.reports import junit, markdown, summarise, terminal
from fa4verify.reports.summary import STATUSES, WORDS
from tests.reports.make import record, run
from tests.reports.test_junit import NEWS, breaches
from tests.reports.test_markdown import parsed


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(STATUSES), max_size=15))
def test_every_renderer_accounts_for_every_case(statuses: list[str]) -> None:
    names = [f"case-{index}-end" for index in range(len(statuses))]
    done = [(name, status) for name, status in zip(names, statuses, strict=True) if status != "MISSING"]
    summary = summarise(run(*(record(name, status) for name, status in done), asked=tuple(names)))
    expected = Counter(statuses)

    counts = parsed(markdown.render(summary))[0][1:]
    assert {row[0].split()[-1]: int(row[1]) for row in counts} == {
        **{status: expected[status] for status in STATUSES},
        "asked": len(statuses),
    }
    listed = [
        row for table in parsed(markdown.render(summary))[1:] for row in table if row[0].endswith(tuple(STATUSES))
    ]
    assert Counter(row[0].split()[-1] for row in listed) == expected
    assert sorted(row[1] for row in listed) == sorted(names)

    suite = ET.fromstring(junit.render(summary).encode()).find("testsuite")
    assert breaches(suite) == []
    assert [testcase.get("name") for testcase in suite.iter("testcase")] == [row.id for row in summary.rows]
    said = [child.get("type") for testcase in suite.iter("testcase") for child in testcase if child.tag in NEWS]
    assert Counter(said) == Counter(status for status in statuses if status != "PASS")

    stream = io.StringIO()
    terminal.render(summary, console=Console(file=stream, width=120))
    totals = re.search(r"^gate: (\d+) asked: (.*)$", stream.getvalue(), re.MULTILINE)
    if not statuses:
        assert totals is None
        return
    words = {word: status for status, word in WORDS.items()}
    found = {words[part.split(" ", 1)[1]]: int(part.split()[0]) for part in totals[2].split(", ")}
    assert found == dict(expected)
    assert int(totals[1]) == sum(found.values()) == len(statuses)
    for name, status in done:
        assert re.search(rf"^{status}\s+{name}\b", stream.getvalue(), re.MULTILINE)
