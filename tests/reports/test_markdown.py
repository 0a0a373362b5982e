"""Markdown, parsed back by a CommonMark parser: tables keep their columns, foreign text stays text."""

from __future__ import annotations

import re
import shlex
from collections import Counter

import msgspec
import pytest
from markdown_it import MarkdownIt

from fa4verify.reports import markdown, summarise
from fa4verify.runs import Run
from fa4verify.vocabulary import Study
from tests.reports.make import HOSTILE, case, record, run, verdict

GOLDEN = """\
# fa4verify: `gate`

**2 asked: 1 passed, 1 failed.** FlashAttention's own rule would have passed 1 of the 1 failure.

| outcome | cases |
| --- | --- |
| ✅ PASS | 1 |
| ❌ FAIL | 1 |
| ❔ INCONCLUSIVE | 0 |
| ⏭️ SKIPPED | 0 |
| 💥 CRASHED | 0 |
| ⏰ TIMEOUT | 0 |
| 🕳️ MISSING | 0 |
| asked | 2 |

## To look at

### ❌ FAIL `bad`

```text
o rmse 4e-05 > 3e-05 (absolute); budget rmse: made by hand
rerun: fa4verify run gate --select bad
```

## All cases
"""


def parsed(text: str) -> list[list[list[str]]]:
    """Return every table as rows of cells, as a reader sees them."""
    tables: list[list[list[str]]] = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in {"th_open", "td_open"}:
            assert following is not None
            tables[-1][-1].append("".join(child.content for child in following.children or ()))
    return tables


def test_golden() -> None:
    text = markdown.render(summarise(run(record("good"), record("bad", "FAIL"))))
    assert text.startswith(GOLDEN)
    assert text.endswith("## Rerun\n\n```text\nfa4verify run gate\n```\n")


def test_the_command_is_whole_however_long_its_selection_and_stays_in_its_fence() -> None:
    several = " or ".join(f"id=fwd-fa4_sm90-bf16-b1h2s384d64-causal-normal-s{seed}" for seed in range(30))
    for select in (several, "```` </code><script>$(x) 'a'"):
        given = run(record("good"))
        header = msgspec.structs.replace(given.header, select=select, kernel="mine:attention", device="cuda:1")
        text = markdown.render(summarise(Run(header, given.records)))
        last = MarkdownIt("commonmark").parse(text)[-1]
        assert last.type == "fence"
        assert shlex.split(last.content) == header.command(select)


def test_foreign_text_cannot_become_markup() -> None:
    evil = [
        HOSTILE,
        "`" * 5,
        "```\n# escaped",
        "| a | b |",
        "a`<b>`[x](http://e)`c",
        "\\| \\`",
        "</details><script>",
        "`tick at both ends`",
        " ",
    ]
    records = [record(name, "FAIL", verdict=verdict("FAIL", name), command=name) for name in evil]
    text = markdown.render(summarise(run(*records, notes=tuple(evil))))
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    headings = Counter(token.tag for token in tokens if token.type == "heading_open")
    assert headings == {"h1": 1, "h2": 4, "h3": len(evil)}
    assert sum(token.type == "fence" for token in tokens) == len(evil) + 1, "one for each failure and one to rerun all"
    assert [token.content.strip() for token in tokens if token.type == "html_block"] == [
        "<details><summary>Environment</summary>",
        "</details>",
    ]
    inline = [child for token in tokens for child in token.children or ()]
    assert not [child for child in inline if child.type in {"html_inline", "link_open", "image"}]
    cases = parsed(text)[1]
    assert {len(row) for row in cases} == {13}
    # What a reader sees is the id on one line with its control characters escaped; a backslash before a pipe may go.
    for name, row in zip(evil[1:5], cases[2:6], strict=True):
        assert row[1] == " ".join(name.split())


@pytest.mark.parametrize("outcome", ["PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "CRASHED", "TIMEOUT"])
def test_every_outcome_is_a_row(outcome: str) -> None:
    counts, cases, *_ = parsed(markdown.render(summarise(run(record("a", outcome)))))
    assert next(row for row in counts if row[0].endswith(outcome))[1] == "1"
    assert cases[1][0].endswith(outcome)


def test_missing_cases_are_listed() -> None:
    text = markdown.render(summarise(run(record("a"), asked=("b", "c"))))
    assert "The run ended before it was done: 2 of 3 cases have no record (listed last)." in text
    assert [row[1] for row in parsed(text)[2][1:]] == ["b", "c"]


@pytest.mark.parametrize("message", ["short", "`<script>\u202e\x1b'\"|" * 10_000])
def test_a_large_run_is_cut_at_the_limit_worst_first_with_its_numbers(message: str) -> None:
    outcomes = ("PASS", "FAIL", "CRASHED", "INCONCLUSIVE")
    records = [
        record(f"case{index}-{'x' * 80}", outcomes[index % 4], verdict=verdict(outcomes[index % 4], message))
        for index in range(8000)
    ]
    text = markdown.render(summarise(run(*records)))
    assert 0.8 * markdown.LIMIT < len(text.encode()) <= markdown.LIMIT <= 2**20
    headings = re.findall(r"### (?:❌|💥|❔) ([A-Z]+) `", text)
    assert headings == sorted(headings, key=["FAIL", "CRASHED", "INCONCLUSIVE"].index)
    assert headings[0] == "FAIL"
    cases = sum(text.count(f"| {sign} | `case") for sign in ("✅ PASS", "❌ FAIL", "💥 CRASHED", "❔ INCONCLUSIVE"))
    left_out = [int(count) for count in re.findall(r"\*\*(\d+) more are left out", text)]
    assert left_out == [6000 - len(headings), 8000 - cases]
    assert text.endswith("fa4verify run gate\n```\n"), "what comes after is not lost"


def test_small_limits_keep_the_verdict() -> None:
    text = markdown.render(summarise(run(*(record(f"r{index}", "FAIL") for index in range(50)))), limit=2500)
    assert "**50 asked: 50 failed.**" in text
    assert "more are left out" in text


def test_foreign_text_of_100_kb_is_cut() -> None:
    long = "a`|<b>" * 20_000
    text = markdown.render(summarise(run(record(long, "FAIL", verdict=verdict("FAIL", long), command=long))))
    assert len(text) < 20_000
    assert "characters, all of them in the run file" in text


def test_an_empty_run_renders() -> None:
    text = markdown.render(summarise(run()))
    assert "**no cases were asked for.**" in text
    assert parsed(text)[0][-1] == ["asked", "0"]


def test_a_study_shows_its_curves() -> None:
    study = Study("options.tau", ("dtype",), ("o.rmse",), ("distribution",), 0)
    points = [record(str(tau), "FAIL", case=case(str(tau), options={"tau": tau})) for tau in (0, 8)]
    text = markdown.render(summarise(run(*points, study=study)))
    assert parsed(text)[1] == [["tau", "bf16 o.rmse", "/0"], ["0", "2.90e-5 !", "1"], ["8", "2.90e-5 !", "1"]]
    assert "To look at" not in text
