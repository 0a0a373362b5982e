"""The gate fails every kernel that is wrong on purpose, and passes its clean twin on the same case.

docs/mutants.md has the whole matrix; here each mutant meets the cheapest gate case that catches it and, where that case
would catch it by luck, the one that was built for it.
"""

import msgspec
import pytest

from fa4verify import flow

from .catalog import ABOUT, ABOUT_BACKWARD, backward_kernel_name, kernel_name
from .catches import CATCHES, CATCHES_BACKWARD, EXP2, GATE, HUGE_KEY, NEGATIVE


def _outcome(case_id: str, kernel: str) -> tuple[str, str]:
    case = GATE[case_id]
    options = case.options if case.operation == "exp2" else {}
    record = flow.verify(msgspec.structs.replace(case, kernel=kernel, options=options))
    return record.verdict.outcome, "; ".join(finding.message for finding in record.verdict.findings)


def test_every_mutant_has_its_case():
    assert set(CATCHES) == set(ABOUT)
    assert set(CATCHES_BACKWARD) == set(ABOUT_BACKWARD)


@pytest.mark.parametrize(("mutant", "case_id"), [(m, case_id) for m, ids in CATCHES.items() for case_id in ids])
def test_the_gate_fails_it(mutant: str, case_id: str):
    outcome, why = _outcome(case_id, kernel_name(mutant))
    assert outcome == "FAIL", f"{ABOUT[mutant]}: {outcome} {why}"


@pytest.mark.parametrize("case_id", sorted({case_id for m, ids in CATCHES.items() for case_id in ids}))
def test_the_clean_twins_pass(case_id: str):
    for kernel in ["fa4-sm100"] if case_id == EXP2 else ["fa4-sm100", kernel_name("clean")]:
        outcome, why = _outcome(case_id, kernel)
        assert outcome == "PASS", f"{kernel}: {outcome} {why}"


@pytest.mark.parametrize(
    ("mutant", "case_id"), [(m, case_id) for m, ids in CATCHES_BACKWARD.items() for case_id in ids]
)
def test_the_gate_fails_its_gradients(mutant: str, case_id: str):
    outcome, why = _outcome(case_id, backward_kernel_name(mutant))
    assert outcome == "FAIL", f"{ABOUT_BACKWARD[mutant]}: {outcome} {why}"


@pytest.mark.parametrize(
    ("mutant", "case_id", "budget"),
    [("dk-unscaled", NEGATIVE, "dk-rows"), ("dk-last-queries-lost", HUGE_KEY, "dv-rows")],
)
def test_a_limit_that_is_wide_for_chance_fails_what_is_wrong(mutant: str, case_id: str, budget: str):
    for kernel, within in ((backward_kernel_name(mutant), False), (backward_kernel_name("clean"), True)):
        record = flow.verify(msgspec.structs.replace(GATE[case_id], kernel=kernel))
        assert [f.passed for f in record.verdict.findings if f.budget == budget] == [within], kernel


@pytest.mark.parametrize("case_id", sorted({case_id for ids in CATCHES_BACKWARD.values() for case_id in ids}))
def test_the_clean_backward_passes(case_id: str):
    for kernel in ["fa4-sm100", backward_kernel_name("clean")]:
        outcome, why = _outcome(case_id, kernel)
        assert outcome == "PASS", f"{kernel}: {outcome} {why}"
