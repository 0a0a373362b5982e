"""docs/hazards.toml: each input makes the emulations depart from attention in the way that docs/fa4.md says.

A hazard that no longer fails is news: FA4, the emulation or the truth has changed, and the page with it.
"""

from pathlib import Path

import pytest

from fa4verify import cases, flow

SUITE = cases.load_suite(str(Path(__file__).parents[1] / "docs" / "hazards.toml"))
HAZARDS = SUITE.cases
# A word of the id, and what the findings say of fa4-sm90 and of fa4-sm100.
EXPECTED = {
    "poison-tensork": ("lse: 64 elements expected nan, got -inf", "o: 4096 elements expected nan, got finite"),
    "valueinf-tensork": ("lse: 32 elements expected +inf, got -inf", "o: 2048 elements expected nan, got finite"),
    "tensorq": ("lse: 1 element expected nan, got -inf",) * 2,
    "causal": ("o: 46 elements expected finite, got nan",) * 2,
    "gap25.3": ("o relative_rmse 0.000488",) * 2,
    "gap20.3": ("lse max_abs 0.000238", "lse max_abs 0.0001157"),
    "sink": ("lse: 47 elements expected finite, got +inf",) * 2,
}


def test_every_hazard_is_expected_once():
    assert all(sum(word in case.id for word in EXPECTED) == 1 for case in HAZARDS)
    assert len(HAZARDS) == 2 * len(EXPECTED)


def test_the_suite_may_run():
    flow.admit(SUITE)


@pytest.mark.parametrize("case", HAZARDS, ids=lambda case: case.id)
def test_fails_as_documented(case):
    verdict = flow.verify(case).verdict
    (expected,) = (said for word, said in EXPECTED.items() if word in case.id)
    messages = [finding.message for finding in verdict.findings]
    assert verdict.outcome == "FAIL"
    assert any(message.startswith(expected["sm100" in case.id]) for message in messages), messages
