"""The HTML report without a browser: every case, every reason, nothing foreign as markup, colours that can be read."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from fa4verify.reports import html, meanings, measures, page, summarise
from fa4verify.reports.study import Cell, Table
from fa4verify.vocabulary import (
    EXP2_METRICS,
    METRICS,
    REPEAT_METRICS,
    TENSORS,
    Budget,
    Finding,
    Metrics,
    Record,
    Study,
    Verdict,
)
from tests.reports.contrast import ratio_of
from tests.reports.make import HOSTILE, case, record, run, verdict
from tests.reports.pictured import failing, metrics

VOID = {"meta", "input", "br", "link"}
BUDGET = Budget("o-model", "o", "rmse", "absolute", 3e-4, "made by hand")
EVIL = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "{{ 7 * 7 }}",
    HOSTILE,
]


class Page(HTMLParser):
    """What a browser makes of the page: elements, their text, and whether tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):  # noqa: D102
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):  # noqa: D102
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):  # noqa: D102
        assert self.open.pop() == tag

    def handle_data(self, data):  # noqa: D102
        if not {"style", "script"} & set(self.open):
            self.said.append(data)

    @property
    def text(self) -> str:  # noqa: D102
        return " ".join(" ".join(self.said).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:  # noqa: D102
        return [attributes for name, attributes in self.elements if name == tag]


def rendered(*records, drawn=(), sections=(), **more) -> str:
    return html.render(summarise(run(*records, **more)), drawn=drawn, sections=sections)


def judged(name: str, outcome="PASS", value=2.5e-4, **fields) -> Record:
    finding = Finding(f"o rmse {value}", "o", "rmse", value, 3e-4, (0, 3, 1, 5), "o-model", outcome == "PASS")
    given = {
        "case": case(name, budgets=(BUDGET,)),
        "verdict": Verdict(outcome, (finding,)),
        "metrics": {"o": metrics()},
    }
    return record(name, outcome, **(given | fields))


def test_it_opens_with_the_verdict_and_what_was_tested_on_what():
    shown = Page(rendered(record("good"), record("bad", "FAIL"))).text
    opening = shown[shown.index("fa4verify:") :][:900]
    assert "Failed. 2 asked: 1 passed, 1 failed." in opening
    for fact in (
        "fa4-sm90",
        "forward",
        "bf16",
        "A | CPU",
        "abc123",
        "2026-11-29 19:15 UTC",
        "fa4verify run gate --select id=bad",
    ):
        assert fact in shown
    assert "Passed." in Page(rendered(record("good"))).text
    assert "Not proven." in Page(rendered(record("good"), asked=("gone",))).text
    assert "Not proven. no cases were asked for." in Page(rendered()).text


def test_a_failure_says_metric_limit_place_certainty_and_command():
    shown = Page(rendered(failing("bad", "mine:attention"), judged("good"))).text
    failure = shown[shown.index("Failures") : shown.index("Cases Filter")]
    for said in (
        "o rmse", "value 4.000e-4", "limit 3.000e-4", "1.33 x the limit",
        "batch 0, query 3, head 1, channel 5", "row 3 of query tile 0", "column 37 of KV tile 0",
        "certified to 1.00e-13", "2.22 times that of a correctly rounded one", "rule would let this case pass",
        "O is 2 times the truth", "fa4verify run gate --select bad", meanings.METRICS["rmse"],
    ):  # fmt: skip
        assert said in failure, said


def test_failures_come_first_and_the_worst_of_them_before_the_others():
    small, large = judged("small", "FAIL", 3.1e-4), judged("large", "FAIL", 9e-4)
    text = rendered(small, judged("good"), record("dead", "CRASHED", verdict=verdict("CRASHED", "boom")), large)
    places = [text.index(f'id="f{number}"') for number in (4, 1, 3)]
    assert places == sorted(places)
    assert places[-1] < text.index('id="cases"') < text.index('id="limits"') < text.index('id="environment"')


@pytest.mark.parametrize("outcome", ["PASS", "FAIL", "INCONCLUSIVE", "SKIPPED", "CRASHED", "TIMEOUT"])
def test_every_outcome_is_a_row_and_every_reason_is_told(outcome):
    why = "because <of> that"
    given = verdict(outcome) if outcome == "PASS" else Verdict(outcome, (Finding(why),))
    shown = Page(rendered(record("a", outcome, verdict=given), asked=("gone",)))
    rows = [row for row in shown.all("tr") if "data-s" in row]
    assert [(row["id"], row["data-s"]) for row in rows] == [("c1", outcome), ("c2", "MISSING")]
    assert outcome == "PASS" or why in shown.text
    assert "no record: the run ended before this case was done" in shown.text


def test_every_link_leads_somewhere():
    records = [failing("bad", "x"), judged("a"), judged("b", "FAIL"), record("s", "SKIPPED")]
    table = Table("t <b>", ("h", "v"), (("l", (Cell("1", "PASS"),)),))
    shown = Page(rendered(*records, asked=("gone",), sections=(page.Section("What changed", ("Nothing.",), (table,)),)))
    ids = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in shown.all("a")]
    assert {href[1:] for href in links} <= set(ids)
    assert all(href.startswith("#") for href in links), "self-contained"


def test_foreign_text_stays_text():
    budget = Budget(EVIL[0], "o", EVIL[1], "absolute", 1.0, EVIL[2])
    records = []
    for place, name in enumerate(EVIL):
        finding = Finding(name, "o", name, 2.0, 1.0, (0, 1, 2, 3), budget.name)
        records.append(
            Record(
                case=case(name + str(place), kernel=name, budgets=(budget,), options={"x": name}),
                verdict=Verdict("FAIL", (finding, Finding("hint: " + name))),
                metrics={"o": Metrics({"rmse": 1.0, name: 2.0})},
                checked={name: name},
                provenance={name: name, "radius": name},
                command=name,
            )
        )
    records.append(record(EVIL[0] + "s", "SKIPPED", verdict=Verdict("SKIPPED", (Finding(EVIL[0]),))))
    text = html.render(summarise(run(*records, notes=tuple(EVIL))))
    shown = Page(text)
    assert len(shown.all("script")) == 2
    assert not shown.all("img")
    assert not [name for _, attributes in shown.elements for name in attributes if name.startswith("on")]
    assert "49" not in re.findall(r"\b49\b", shown.text)
    assert EVIL[1] in shown.text
    assert EVIL[3] in shown.text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\ud800-\udfff]", text)
    text.encode()


def test_a_message_of_100_kb_is_cut_and_says_so():
    text = rendered(
        record("a", "CRASHED", verdict=Verdict("CRASHED", (Finding("<x" * 50_000),))), record("i" * 100_000)
    )
    assert len(text) < 120_000
    assert "(100000 characters, all of them in the run file)" in text


def test_the_policy_lets_nothing_in_but_its_own_scripts():
    text = rendered(record("a"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert policy.count("sha256-") == len(scripts) == 2
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_same_run_gives_the_same_bytes():
    assert rendered(failing("a", "x"), judged("b")) == rendered(failing("a", "x"), judged("b"))


def test_limits_show_the_case_that_came_closest():
    shown = Page(rendered(judged("far", value=1e-4), judged("near", value=2.9e-4))).text
    limits = shown[shown.index("Limits Broken") : shown.index("Environment date")]
    assert "near" in limits
    assert "far" not in limits
    assert "0.9667" in limits
    assert "made by hand" in limits


def test_shares_of_limits():
    equals = Budget("bias", "o", "mean_error", "equals", 0.1, "by hand", value=5.0)
    row = summarise(run(record("a", case=case("a", budgets=(equals,))))).rows[0]
    near = Finding("", "o", "mean_error", 5.05, 0.1, budget="bias", passed=True)
    assert page.share(row, near) == pytest.approx(0.5), "of kind equals: the distance from the value, not from 0"
    assert page.share(row, Finding("", "o", "distinct", 1.0, 1.0, passed=True)) is None
    assert page.share(row, Finding("", "o", "distinct", 3.0, 1.0)) == 3.0
    assert page.share(row, Finding("", "o", "rmse", 1.0, 0.0)) == float("inf")
    assert page.share(row, Finding("")) is None


def test_a_study_shows_curves():
    study = Study("options.tau", ("dtype",), ("o.rmse",), ("distribution",), 0)
    points = [record(str(tau), "FAIL", case=case(str(tau), options={"tau": tau})) for tau in (0, 8)]
    shown = Page(rendered(*points, study=study)).text
    assert "2.90e-5 !" in shown
    assert "Failures" not in shown


def test_many_failures_are_cut_with_a_count():
    text = rendered(*(judged(f"case{number}", "FAIL", 4e-4) for number in range(page.CARDS + 7)))
    assert text.count("<article") == page.CARDS
    assert "<b>7 more</b>" in text


def test_everything_has_a_meaning():
    for operation, columns in measures.MEASURES.items():
        assert {column.title for column in columns} == set(meanings.COLUMNS[operation])
    assert set(meanings.METRICS) >= {*METRICS, *REPEAT_METRICS, *EXP2_METRICS}
    assert set(meanings.TENSORS) == {name for names in TENSORS.values() for name in names}
    assert all(said.endswith(".") for said in (*meanings.METRICS.values(), *meanings.COLUMNS["forward"].values()))


def test_colours_of_text_have_a_contrast_of_4_5():
    """WCAG 2.2, 1.4.3, level AA, in both palettes, on the page and on panels."""
    style = files("fa4verify.reports").joinpath("templates", "report.css").read_text()
    palettes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{([^}]*)\}", style)]
    assert len(palettes) == 2
    assert set(palettes[0]) == set(palettes[1])
    for palette in palettes:
        for name in set(palette) - {"bg", "panel", "line"}:
            for ground in ("bg", "panel"):
                assert ratio_of(palette[name], palette[ground]) >= 4.5, (name, ground)
    assert ratio_of(palettes[0]["link"], palettes[1]["bg"]) < 4.5, "the check can fail: a light link in the dark"
