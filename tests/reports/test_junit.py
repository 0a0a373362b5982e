"""JUnit XML, checked against the rules of Jenkins' junit-10.xsd by a checker of its own, and parsed back.

One thing that pytest writes and Jenkins reads is allowed beyond the schema: properties of a testcase.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from fa4verify.reports import junit, summarise
from fa4verify.reports.history import compare
from fa4verify.vocabulary import Study
from tests.reports.make import HOSTILE, record, run, verdict
from tests.reports.test_history import of

if TYPE_CHECKING:
    from fa4verify.runs import Run

NEWS = {"failure", "error", "skipped"}
# Element: required attributes, optional attributes, children (junit-10.xsd, without the elements of reruns).
RULES: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url", "version"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name"}, {"time", "classname", "group"}, NEWS | {"properties", "system-out", "system-err"}),
    **{tag: (set(), {"type", "message"}, set()) for tag in NEWS},
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")


def breaches(element: ET.Element) -> list[str]:
    """Return how an element and those below break the schema or contradict their counts."""
    if element.tag not in RULES:
        return [f"unknown element {element.tag}"]
    required, optional, children = RULES[element.tag]
    names = set(element.attrib)
    found = [f"{element.tag} lacks {name}" for name in sorted(required - names)]
    found += [f"{element.tag} has {name}" for name in sorted(names - required - optional)]
    found += [f"{child.tag} in {element.tag}" for child in element if child.tag not in children]
    if "time" in names and not TIME.fullmatch(element.get("time", "")):
        found.append(f"time {element.get('time')}")
    if children and (element.text or "").strip():
        found.append(f"text in {element.tag}")
    if element.tag == "testcase" and sum(child.tag in NEWS for child in element) > 1:
        found.append("a testcase with two outcomes")
    if element.tag in {"testsuite", "testsuites"}:
        tags = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
        for name, tag in tags.items():
            if name in names and int(element.get(name, "")) != sum(1 for _ in element.iter(tag)):
                found.append(f"{element.tag}: {name} is not the number of {tag}")
    return found + [breach for child in element for breach in breaches(child)]


def rendered(item: Run) -> ET.Element:
    text = junit.render(summarise(item))
    root = ET.fromstring(text.encode())
    assert breaches(root) == []
    return root


@pytest.mark.parametrize(
    ("damage", "breach"),
    [
        (lambda text: text.replace('tests="2"', 'tests="3"'), "tests is not the number"),
        (lambda text: text.replace('errors="1"', ""), "lacks errors"),
        (lambda text: text.replace("<error", "<errors").replace("</error", "</errors"), "unknown element"),
        (lambda text: text.replace("<properties>", "<properties><testcase name='c'/>"), "testcase in properties"),
        (lambda text: text.replace('time="1.500"', 'time="1.5e0"'), "time 1.5e0"),
    ],
)
def test_the_checker_can_fail(damage: object, breach: str) -> None:
    text = junit.render(summarise(run(record("a"), record("b", "CRASHED"))))
    damaged = damage(text)
    assert damaged != text
    assert breach in " ".join(breaches(ET.fromstring(damaged.encode())))


@pytest.mark.parametrize(
    ("outcome", "tag"),
    [
        ("PASS", None),
        ("FAIL", "failure"),
        ("INCONCLUSIVE", "failure"),
        ("SKIPPED", "skipped"),
        ("CRASHED", "error"),
        ("TIMEOUT", "error"),
    ],
)
def test_only_a_pass_looks_passed(outcome: str, tag: str | None) -> None:
    (testcase,) = rendered(run(record("a", outcome))).iter("testcase")
    news = [child for child in testcase if child.tag in NEWS]
    assert [child.tag for child in news] == ([] if tag is None else [tag])
    if news:
        assert news[0].get("type") == outcome
        assert news[0].get("message", "").startswith("o rmse 4e-05 > 3e-05")
        assert news[0].text.endswith("rerun: fa4verify run gate --select a")


def test_missing_cases_are_errors() -> None:
    root = rendered(run(asked=("gone",), notes=("line 2 is cut off",)))
    assert [error.get("type") for error in root.iter("error")] == ["MISSING"]
    assert root.find("testsuite/system-err").text == "line 2 is cut off"


def test_a_point_of_a_study_neither_fails_nor_passes() -> None:
    study = Study("options.tau", ("dtype",), ("o.rmse",))
    root = rendered(run(record("a", "FAIL"), record("b", "CRASHED"), study=study))
    (skipped,) = root.iter("skipped")
    assert skipped.get("message", "").startswith("a point of a study, FAIL: o rmse")
    assert [error.get("type") for error in root.iter("error")] == ["CRASHED"]


def test_what_departs_from_a_baseline_fails() -> None:
    old = run(
        of("worse"), of("same"), record("now-skipped"), record("now-bad"), of("unlooked", checked={"o": "checked"})
    )
    new = run(
        of("worse", rmse=2e-5),
        of("same"),
        record("now-skipped", "SKIPPED", verdict=verdict("SKIPPED", "declined")),
        record("now-bad", "FAIL"),
        of("unlooked", checked={"o": "no budget"}),
        of("new"),
    )
    summary = summarise(new)
    root = ET.fromstring(junit.render(summary, compare(summarise(old), summary)).encode())
    assert breaches(root) == []
    told = {
        case.get("name"): [(news.get("type"), news.text) for news in case if news.tag in NEWS]
        for case in root.iter("testcase")
    }
    assert told["same"] == told["new"] == []
    assert {name: news[0][0] for name, news in told.items() if news} == {
        "worse": "DRIFTED", "now-skipped": "DRIFTED", "now-bad": "FAIL", "unlooked": "DRIFTED"
    }  # fmt: skip
    assert "baseline: o rmse was 1.00e-5, is 2.00e-5, may move 0: worse" in told["worse"][0][1]
    assert "baseline: was PASS, is SKIPPED: declined" in told["now-skipped"][0][1]
    assert "baseline: was PASS, is FAIL\nrerun:" in told["now-bad"][0][1]
    assert "baseline: was o checked, is not checked: no budget" in told["unlooked"][0][1]
    assert "rerun: fa4verify run gate --select worse" in told["worse"][0][1]
    alone = ET.fromstring(junit.render(summary, compare(summarise(run(record("else"))), summary)).encode())
    assert breaches(alone) == []
    assert [error.get("message") for error in alone.iter("error")] == ["no case of the baseline was run"]


def test_foreign_text_survives_as_text() -> None:
    message = HOSTILE + " ]]> \x0b\x1f\x7f\ufffe"
    hostile = record(HOSTILE, "FAIL", verdict=verdict("FAIL", message), command=HOSTILE)
    root = rendered(run(hostile, notes=(HOSTILE,)))
    (testcase,), (failure,) = root.iter("testcase"), root.iter("failure")
    assert "a|b `c` ``d`` <b>&amp; \\x1b[31m\\x00\\ud800\\uffff" in testcase.get("name", "")
    assert "]]> \\x0b\\x1f\\x7f\\ufffe" in failure.text
    assert "数值 \U0001f4a5" in failure.text


def test_figures_are_properties_that_read_back_to_the_bit() -> None:
    (testcase,) = rendered(run(record("a", checked={"lse": "the kernel returned none"}))).iter("testcase")
    found = {item.get("name"): item.get("value", "") for item in testcase.iterfind("properties/property")}
    assert float(found["o.rmse"]) == 2.9e-5
    assert float(found["baseline.o.rmse"]) == 5.8e-5
    assert found["activity.rescales_skipped"] == "3"
    assert found["verdict"] == "PASS"
    assert found["checked.lse"] == "the kernel returned none"


def test_a_message_of_100_kb_is_cut_and_says_so() -> None:
    message = "<script>" + "\x1b[2J'\"" * 20_000
    text = junit.render(summarise(run(record(message, "CRASHED", verdict=verdict("CRASHED", message)))))
    assert len(text) < 20_000
    assert "\x1b" not in text
    assert "characters, all of them in the run file" in text
    assert breaches(ET.fromstring(text.encode())) == []


GOLDEN = """\
    <testcase name="b" classname="fa4verify.gate" time="1.500">
      <properties>
        <property name="verdict" value="CRASHED" />
        <property name="seed" value="0" />
        <property name="provenance.model" value="by hand" />
      </properties>
      <error type="CRASHED" message="o rmse is nan">o rmse is nan
rerun: fa4verify run gate --select b</error>
    </testcase>
"""


def test_golden() -> None:
    crashed = record("b", "CRASHED", verdict=verdict("CRASHED", "o rmse is nan"), provenance={"model": "by hand"})
    text = junit.render(summarise(run(record("a"), crashed)))
    assert GOLDEN in text


def test_an_empty_run_is_a_valid_file() -> None:
    root = rendered(run())
    assert root.get("tests") == "0"
