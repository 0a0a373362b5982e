"""Budgets decide."""

from __future__ import annotations

from fa4verify.vocabulary import Case, Finding, Metrics, Verdict


def judge(case: Case, metrics: dict[str, Metrics]) -> Verdict:
    """Hold every budget of the case against what was measured."""
    findings = []
    for budget in case.budgets:
        value = metrics[budget.tensor].values[budget.metric]
        findings.append(
            Finding(
                message=f"{budget.tensor} {budget.metric} {value:.3e}, limit {budget.limit:.3e}",
                tensor=budget.tensor,
                metric=budget.metric,
                value=value,
                limit=budget.limit,
                budget=budget.name,
                passed=value <= budget.limit,
            )
        )
    return Verdict("PASS" if all(finding.passed for finding in findings) else "FAIL", tuple(findings))
