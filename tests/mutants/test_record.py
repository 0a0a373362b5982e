"""The command that makes a run file of the mutants, on one of them."""

from __future__ import annotations

from fa4verify.reports.figures.checks import RULE, _cells

from .__main__ import HALVES, asked, records
from .catches import CATCHES, GATE

MUTANT = "o-truncated"


def test_every_mutant_meets_every_case_that_catches_one():
    for which, (about, catches, _) in HALVES.items():
        copies = asked(which)
        assert set(copies) == {case_id for ids in catches.values() for case_id in ids}
        for case_id, found in copies.items():
            repeats = GATE[case_id].operation == "repeat"
            assert len(found) == (2 if repeats else 1 + len(about))
        ids = [copy.id for found in copies.values() for copy in found]
        assert len(ids) == len(set(ids))


def test_a_mutant_fails_its_clean_twin_passes_and_the_rule_is_there():
    clean, mutant = records(asked("forward", (MUTANT,)))
    assert (clean.verdict.outcome, mutant.verdict.outcome) == ("PASS", "FAIL")
    (case_id,) = CATCHES[MUTANT]
    assert GATE[case_id].budgets
    cells = _cells([mutant], set())
    assert any(cells.values())
    assert cells[RULE] is False, "FlashAttention's rule lets it through"
    assert mutant.command.endswith(f"--kernel {mutant.case.kernel}")
