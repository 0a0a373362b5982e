"""What changed, as a terminal, Markdown and the HTML page tell it."""

from __future__ import annotations

import io
import math

import msgspec
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from fa4verify.reports import changes, html, markdown, summarise
from fa4verify.reports.history import Change, Comparison, compare
from tests.reports.make import HOSTILE, record, run, verdict
from tests.reports.test_history import of

TERMINAL = """\

New failures: 1
  broken  before PASS; after FAIL; why o rmse 4e-05 > 3e-05 (absolute)

Drifted: 2
  worse  figure o rmse; before 1.00e-5; after 2.00e-5; may move 0; is worse; further figures 0
  last-bit
    figure o rmse; before 1.0000000000000001e-5; after 1.0000000000000003e-5; may move 0; is worse; further figures 0

Fixed: 1
  fixed  before FAIL; after PASS; why -

Vanished: 1
  gone  before PASS; after not there; why -

Environment: 1
  torch  before 2.13.0; after 2.14.0
"""

MARKDOWN = """\
# What changed

Regressed: 1 new failure, 2 drifted for the worse, 1 fixed, 1 vanished; 4 cases in both runs.

From abc123 of 2026-11-29 19:15Z on xeon-2c to abc123 of 2026-11-29 19:15Z on xeon-2c.

32 figures were compared, to the bit.

may move: how far"""


def example() -> Comparison:
    old = run(record("broken"), of("worse"), record("fixed", "FAIL"), of("last-bit"), record("gone"))
    new = run(
        record("broken", "FAIL"),
        of("worse", rmse=2e-5),
        record("fixed"),
        of("last-bit", rmse=math.nextafter(1e-5, 1)),
    )
    found = compare(summarise(old), summarise(new))
    return Comparison(**{**vars(found), "environment": (("torch", "2.13.0", "2.14.0"),)})


def printed(comparison: Comparison, width: int = 100) -> str:
    stream = io.StringIO()
    changes.render(comparison, console=Console(file=stream, width=width))
    return stream.getvalue()


def test_golden_terminal():
    shown = printed(example())
    assert shown.startswith(TERMINAL)
    assert shown.splitlines()[-1] == changes.headline(example())
    assert "\x1b" not in shown


def test_golden_markdown():
    text = changes.render_markdown(example())
    assert text.startswith(MARKDOWN)
    assert "| `worse` | `o rmse` | `1.00e-5` | `2.00e-5` | `0` | `worse` | `0` |" in text


def test_nothing_changed():
    summary = summarise(run(record("a")))
    assert printed(compare(summary, summary)).splitlines()[-1] == (
        "No regression: nothing changed; 1 case in both runs."
    )


def test_one_view_model_reaches_every_reader():
    section = changes.section(example())
    page = html.render(summarise(run(record("a"))), sections=[section], drawn=())
    inside = markdown.render(summarise(run(record("a"))), sections=[section])
    alone, shown = changes.render_markdown(example()), printed(example())
    for table in section.tables:
        assert f"<caption>{table.title}</caption>" in page
        for text in (inside, alone, shown):
            assert table.title in text
            assert all(label in text for label, _ in table.lines)


def test_a_thousand_changes_are_cut_with_their_number():
    many = tuple(Change(f"case{index}", "PASS", "FAIL", "why") for index in range(1000))
    comparison = Comparison(**{**vars(example()), "broken": many})
    assert "New failures: 1000, the first 20 of them" in printed(comparison)
    assert "New failures: 1000, the first 200 of them" in changes.render_markdown(comparison)
    assert len(changes.render_markdown(comparison).splitlines()) < 300


@pytest.mark.parametrize("text", [HOSTILE, "<script>alert(1)</script>", "x" * 100_000, "a|b\n# c\n`d`", "**b** [l](u)"])
def test_foreign_text_stays_text(text):
    bad = record(text, "FAIL", verdict=verdict("FAIL", text), command=text)
    old, new = run(record(text), of("worse")), run(bad, of("worse", rmse=2e-5))
    header = msgspec.structs.replace(new.header, machine=text, fingerprint={text: text})
    comparison = compare(summarise(old), summarise(type(new)(header, new.records)))
    shown = printed(comparison)
    shown.encode()
    assert "\x1b" not in shown
    told = [line for lines in changes.departures(comparison).values() for line in lines]
    assert len(told) == 2
    assert all(line.isprintable() and len(line) < 1000 for line in told)
    written = changes.render_markdown(comparison)
    assert len(written) < 10_000
    tokens = MarkdownIt("commonmark").enable("table").parse(written)
    assert not [token for token in tokens if token.type == "html_block"]
    kinds = {child.type for token in tokens for child in token.children or ()}
    assert kinds <= {"text", "code_inline", "text_special"}, "no HTML, link, emphasis or image"
    assert sum(token.type == "heading_open" for token in tokens) == 4, "title, failures, drifts, environment"
    page = html.render(summarise(run(record("a"))), sections=[changes.section(comparison)], drawn=())
    assert "<script>alert" not in page
    page.encode()
