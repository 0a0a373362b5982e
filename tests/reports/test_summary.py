"""The view model: every case asked for has a row, and the exit code says what the rows say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa4verify.reports import exit_code, summarise
from fa4verify.reports.summary import STATUSES
from fa4verify.vocabulary import Study
from tests.reports.make import record, run

STUDY = Study(rows="options.tau", columns=("dtype",), values=("o.rmse",))


@pytest.mark.parametrize(
    ("outcomes", "gate", "study"),
    [
        ("", 3, 3),
        ("PASS", 0, 0),
        ("PASS SKIPPED", 0, 0),
        ("SKIPPED SKIPPED", 3, 3),
        ("PASS INCONCLUSIVE", 3, 3),
        ("PASS MISSING", 3, 3),
        ("MISSING", 3, 3),
        ("PASS FAIL", 1, 0),
        ("FAIL", 1, 0),
        ("FAIL INCONCLUSIVE", 1, 3),
        ("FAIL SKIPPED", 1, 0),
        ("PASS CRASHED", 1, 1),
        ("PASS TIMEOUT MISSING", 1, 1),
    ],
)
def test_exit_codes(outcomes: str, gate: int, study: int) -> None:
    names = list(enumerate(outcomes.split()))
    records = [record(f"case{index}", outcome) for index, outcome in names if outcome != "MISSING"]
    asked = tuple(f"case{index}" for index, _ in names)
    assert exit_code(summarise(run(*records, asked=asked))) == gate
    assert exit_code(summarise(run(*records, asked=asked, study=STUDY))) == study


def test_a_fail_without_a_figure_is_no_point_of_a_study() -> None:
    """As where a GPU is required and there is none: nothing was measured, and a curve without points is no success."""
    unmeasured = record("a", "FAIL", metrics={}, baseline={}, activity={})
    found = summarise(run(unmeasured, record("b", "FAIL"), study=STUDY))
    assert exit_code(found) == 1
    assert [row.id for row in found.failures] == ["a"]
    assert found.totals == "2 asked: 1 failed, 1 failed (points of the study)"
    assert exit_code(summarise(run(record("b", "FAIL"), study=STUDY))) == 0


def test_a_file_that_could_not_be_read_in_full_is_never_a_pass() -> None:
    assert exit_code(summarise(run(record("a"), notes=("line 3 is unreadable",)))) == 3


def test_rows_stand_in_the_order_asked_for_whatever_the_order_of_the_records() -> None:
    first, second = record("a"), record("b", "FAIL")
    one, other = (summarise(run(*order, asked=("c",))) for order in ((first, second), (second, first)))
    assert [row.id for row in one.rows] == ["a", "b", "c"]
    assert one.rows[2].status == "MISSING"
    assert {row.id: row for row in one.rows} == {row.id: row for row in other.rows}


def test_a_case_recorded_twice_counts_once_and_is_noted() -> None:
    summary = summarise(run(record("a", "PASS"), record("a", "FAIL")))
    assert summary.asked == 1
    assert summary.counts["FAIL"] == 1
    assert summary.notes == ("a was recorded twice: the last record counts",)


def test_the_decisive_finding_is_the_first_failed_or_the_tightest_held() -> None:
    held, failed = (summarise(run(record("a", outcome))).rows[0] for outcome in ("PASS", "FAIL"))
    assert held.decisive.startswith("o rmse 2.9e-05 <= 3e-05")
    assert failed.decisive.startswith("o rmse 4e-05 > 3e-05")


def test_what_flash_attentions_rule_would_have_let_through() -> None:
    failures = [record(str(index), "FAIL", fa_rule=passes) for index, passes in enumerate((True, True, False, None))]
    summary = summarise(run(*failures, record("p", "PASS", fa_rule=True)))
    assert summary.fa_rule_sentence == "FlashAttention's own rule would have passed 2 of the 3 failures."
    assert summarise(run(record("p", "PASS"))).fa_rule_sentence == ""


def test_what_nobody_checked_is_said() -> None:
    checked = {"o": "checked", "lse": "the kernel returned none", "activity.x": "the kernel does not count it"}
    summary = summarise(run(msgspec.structs.replace(record("a"), checked=checked), record("b")))
    assert summary.sentences == ("Not returned by the kernel, so unchecked: lse in 1 of 2 cases.",)
    assert summarise(run(record("b"))).sentences == ()


def test_slowest_first() -> None:
    timed = [record(f"t{index}", seconds={"run": float(index), "solve": 0.5}) for index in range(8)]
    assert [(row.id, row.seconds) for row in summarise(run(*timed)).slowest[:2]] == [("t7", 7.5), ("t6", 6.5)]


def test_headlines() -> None:
    points = (record("a"), record("b", "FAIL"))
    assert summarise(run()).headline == "gate: no cases were asked for"
    assert summarise(run(*points, asked=("c",))).headline == "gate: 3 asked: 1 passed, 1 failed, 1 missing"
    assert "1 failed (points of the study)" in summarise(run(*points, study=STUDY)).headline


@given(st.lists(st.sampled_from(STATUSES), max_size=12))
def test_counts_add_up(statuses: list[str]) -> None:
    records = [record(f"c{index}", status) for index, status in enumerate(statuses) if status != "MISSING"]
    summary = summarise(run(*records, asked=tuple(f"c{index}" for index in range(len(statuses)))))
    assert sum(summary.counts.values()) == summary.asked == len(statuses)
    assert all(summary.counts[status] == statuses.count(status) for status in STATUSES)
    assert sum(map(len, summary.operations.values())) == summary.asked
