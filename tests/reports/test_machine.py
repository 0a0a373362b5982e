"""The verdict for a script, parsed back."""

from __future__ import annotations

import json
from pathlib import Path

from fa4verify.reports import machine, summarise
from fa4verify.reports.history import compare
from tests.reports.make import HOSTILE, record, run, verdict
from tests.reports.test_history import of

KEYS = {"exit_code", "headline", "suite", "kernel", "counts", "failures", "not_run", "notes", "files"}
GOLDEN = {
    "id": "bad",
    "status": "FAIL",
    "message": "o rmse 4e-05 > 3e-05 (absolute); budget rmse: made by hand",
    "command": "fa4verify run gate --select bad",
}


def test_golden() -> None:
    summary = summarise(run(record("bad", "FAIL"), record("good"), asked=("never",)))
    told = json.loads(machine.as_json(summary, code=1, files=[Path("runs/a.jsonl")]))
    assert set(told) == KEYS
    assert told["failures"] == [GOLDEN]
    assert told["counts"] | {"FAIL": 1, "PASS": 1, "MISSING": 1} == told["counts"]
    assert [case["id"] for case in told["not_run"]] == ["never"]
    assert (told["exit_code"], told["files"]) == (1, ["runs/a.jsonl"])


def test_changes() -> None:
    comparison = compare(summarise(run(of("a"), record("b"))), summarise(run(of("a", rmse=2e-5), record("b", "FAIL"))))
    told = json.loads(machine.changes_as_json(comparison))
    assert told["exit_code"] == 1
    assert [case["id"] for case in told["broken"]] == ["b"]
    (figure,) = told["drifted"][0]["figures"]
    assert figure == {"name": "o.rmse", "before": 1e-5, "after": 2e-5, "may_move": 0.0, "direction": "worse"}
    assert "changes" in json.loads(machine.as_json(summarise(run(record("a"))), code=1, comparison=comparison))
    assert machine.line(summarise(run(record("a"))), comparison).splitlines() == [
        "gate: 1 asked: 1 passed",
        told["headline"],
    ]


def test_foreign_text_reads_back_and_stays_on_one_line() -> None:
    for text in (HOSTILE, "<script>\x1b" * 10_000):
        hostile = record(text, "FAIL", verdict=verdict("FAIL", text), command=text)
        said = machine.as_json(summarise(run(hostile, notes=(text,))), code=1, files=[Path("a")])
        assert said.isascii()
        assert said.isprintable()
        assert json.loads(said)["failures"][0]["message"] == text
        assert "\x1b" not in machine.line(summarise(run(hostile)))
