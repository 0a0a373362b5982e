"""Hand-made Records for the tests of the reports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fa4verify.runs import Run, RunHeader
from fa4verify.vocabulary import Case, Distribution, Finding, Metrics, Outcome, Record, Shape, Study, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

DATE = datetime(2026, 11, 29, 19, 15, tzinfo=UTC)
HOSTILE = "a|b `c` ``d`` <b>&amp;\n\x1b[31m\x00\ud800\uffff\u202e [red]x[/red] :smile: *_# 数值 \U0001f4a5"


def case(name: str, **fields: object) -> Case:
    given = {"operation": "forward", "kernel": "fa4-sm90", "distribution": Distribution("normal"), "suite": "gate"}
    return Case(**{"id": name, **given, "shape": Shape(1, 4, 8, 2, 2, 64, 64), **fields})


def verdict(outcome: Outcome, message: str = "o rmse 4e-05 > 3e-05 (absolute); budget rmse: made by hand") -> Verdict:
    held = Finding("o ulp_max 0.5 <= 1 (ulp); budget ulp: made by hand", value=0.5, limit=1.0, passed=True)
    if outcome == "PASS":
        tight = Finding("o rmse 2.9e-05 <= 3e-05 (absolute); budget rmse: by hand", value=2.9, limit=3.0, passed=True)
        return Verdict("PASS", (held, tight))
    return Verdict(outcome, (held, Finding(message, value=4e-5, limit=3e-5)))


def record(name: str, outcome: Outcome = "PASS", *, fa_rule: bool | None = True, **fields: object) -> Record:
    values = {"rmse": 2.9e-5, "floor_rmse": 2.8e-5, "ulp_max": 1.5}
    if fa_rule is not None:
        values |= {"fa_rule_value": 1.0 if fa_rule else 9.0, "fa_rule_limit": 2.0}
    measured = {"o": Metrics(values), "lse": Metrics({"max_abs": 1.25e-7})}
    if outcome in {"SKIPPED", "CRASHED", "TIMEOUT"}:
        measured = {}
    given = {
        "case": case(name),
        "verdict": verdict(outcome),
        "metrics": measured,
        "baseline": {"o": Metrics({"rmse": 5.8e-5})} if measured else {},
        "activity": {"rescales_done": 1, "rescales_skipped": 3} if measured else {},
        "seconds": {"run": 0.5, "solve": 1.0},
        "command": f"fa4verify run gate --select {name}",
    }
    return Record(**(given | fields))


def run(*records: Record, asked: tuple[str, ...] = (), study: Study | None = None, notes: tuple[str, ...] = ()) -> Run:
    names = tuple(dict.fromkeys((*(item.case.id for item in records), *asked)))
    fingerprint: Mapping[str, str] = {"cpu": "A | CPU", "torch": "2.13.0"}
    header = RunHeader(
        DATE, "0.1", "gate", commit="abc123", machine="xeon-2c", study=study, fingerprint=dict(fingerprint), asked=names
    )
    return Run(header, records, notes)
