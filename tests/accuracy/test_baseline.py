"""gate.jsonl.xz, what the gate gave when somebody last looked: it is of today's gate, and today's code still gives it.

`make baseline` runs the gate (four minutes) and writes the file; a line in CHANGELOG.md says why. Which cases are run
here: the cheapest forward and backward of each distribution, on both emulations in turn (10 s); all cases with `pytest
-m accuracy` and `make verify`. On another kind of processor a figure may move by what its truth can
(reports/spread.py); gates of an H200's host with other numpy, OpenBLAS, torch and libc differ in none of 507.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fa4verify import flow, plan
from fa4verify.baseline import Baseline
from fa4verify.cases import load_suite
from fa4verify.runs import read

FILE = Path(__file__).with_name("gate.jsonl.xz")
GATE = load_suite("gate")
AGAIN = "the gate is not that of tests/accuracy/gate.jsonl.xz: `make baseline`, and a line in CHANGELOG.md"


def _work(case):
    shape = case.shape
    return shape.batch * shape.heads * shape.seqlen_q * shape.seqlen_k * (shape.head_dim + shape.head_dim_v)


def _sample():
    cheapest = {}
    for case in sorted(GATE.cases, key=lambda case: (_work(case), case.id)):
        if case.operation in ("forward", "backward") and "@" not in case.kernel:
            cheapest.setdefault((case.kernel, case.operation, case.distribution.name), case)
    ordered = sorted(cheapest.values(), key=lambda case: (case.operation, case.distribution.name, case.kernel))
    return [case for place, case in enumerate(ordered) if (place + place // 2) % 2 == 0]


def _asked(case):
    """Return what a case asks and which limits hold it, without the words; a file may turn "inf" into a number."""
    arguments = {name: str(value) for name, value in case.distribution.arguments.items()}
    distribution = msgspec.structs.replace(case.distribution, arguments=arguments)
    budgets = tuple(msgspec.structs.replace(budget, provenance="") for budget in case.budgets)
    return msgspec.structs.replace(case, distribution=distribution, budgets=budgets, timeout_s=0.0)


@pytest.fixture(scope="module")
def baseline():
    return Baseline(FILE, plan.header_of(GATE, None))


def test_it_is_of_this_gate():
    kept = {record.case.id: _asked(record.case) for record in read(FILE).records}
    assert list(kept) == [case.id for case in GATE.cases], AGAIN
    changed = [case.id for case in GATE.cases if kept[case.id] != _asked(case)]
    assert not changed, AGAIN


def test_it_passed_and_is_small():
    run = read(FILE)
    assert {record.verdict.outcome for record in run.records} == {"PASS"}
    assert not run.notes
    assert not any(record.seconds for record in run.records)
    assert FILE.stat().st_size <= 300_000


@pytest.mark.parametrize("case", _sample(), ids=lambda case: case.id)
def test_the_code_still_gives_it(baseline, case):
    assert baseline.departs(flow.verify(case)) == ()


def test_a_departure_is_seen(baseline):
    (record, *_) = read(FILE).records
    for tensor in ("o", "lse"):
        found = record.metrics[tensor]
        moved = msgspec.structs.replace(found, values=found.values | {"rmse": 1.01 * found.values["rmse"]})
        (told,) = baseline.departs(msgspec.structs.replace(record, metrics=record.metrics | {tensor: moved}))
        assert told.startswith(f"baseline: {tensor} rmse was ")
        assert told.endswith(": worse")
