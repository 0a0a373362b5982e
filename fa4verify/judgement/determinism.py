"""Same bits every time, or not: the verdict on repeated runs.

Contract: with deterministic=True every tensor has one bit pattern, or the case FAILs: the kernel took the flag and
ignored it. With deterministic=False the case's budgets say what must not differ all the same (O and LSE; dK and dV
where each head has its own). Nothing passes without power: if random orders of the adds (kernels/repeated.py) give one
pattern too, the case could not have failed and is INCONCLUSIVE. Two addends commute, so an order shows from three on.

What became of the flag is the Record's provenance "deterministic": honoured, accepted and ignored, not proved, or not
asked for; a kernel that refuses it is SKIPPED with its own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.arithmetic.formats import FORMATS, ulp
from fa4verify.judgement.budgets import evaluate
from fa4verify.judgement.layout import EXPECTED_TENSORS, format_name
from fa4verify.judgement.repetition import Observed, Seen, order_dependent
from fa4verify.vocabulary import Case, Finding, Metrics, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fa4verify.judgement.budgets import Evaluation

FORWARD = ("o", "lse")  # what the flag is not about: a forward has nothing to order
HONOURED, IGNORED, NOT_PROVED, NOT_ASKED = "honoured", "accepted and ignored", "not proved", "not asked for"


def judge(case: Case, metrics: Mapping[str, Metrics], runs: Observed, no_twin: str | None = None) -> Verdict:
    """Return the verdict.

    Parameters
    ----------
    case, metrics, runs
        The case, its metrics (`repetition.measure`) and the runs that they were taken from.
    no_twin
        Why there were no shuffled runs, if there were none.
    """
    failed: list[Finding] = []
    passed: list[Finding] = []
    unsaid = list(_powerless(case, metrics, runs, no_twin))
    for budget in case.budgets:
        if budget.tensor == "lse" and "lse" not in runs.tensors:
            continue
        answer = evaluate(budget, case, metrics, {})
        finding = _finding(answer, case, metrics, runs)
        (unsaid if answer.held is None else passed if answer.held else failed).append(finding)
    told = {finding.tensor for finding in failed if finding.metric == "distinct"}
    for name, seen in runs.tensors.items() if case.deterministic else ():
        if seen.distinct > 1 and name not in told:
            at = metrics[name].where.get("distinct")
            count = float(seen.distinct)
            failed.append(Finding(_differs(case, name, seen, metrics), name, "distinct", count, 1.0, at))
    passed += _spreads(case, metrics)
    if failed:
        return Verdict("FAIL", (*failed, *unsaid, *passed))
    if unsaid:
        return Verdict("INCONCLUSIVE", (*unsaid, *passed))
    if not any(finding.budget for finding in passed):
        return Verdict("INCONCLUSIVE", (Finding("nothing was judged: the case has no budget"), *passed))
    return Verdict("PASS", tuple(passed))


def checked(case: Case, runs: Observed) -> dict[str, str]:
    """List every tensor of the operation: "checked", or why not."""
    listed = {}
    for name in EXPECTED_TENSORS["repeat"]:
        budgeted = any(budget.tensor == name for budget in case.budgets)
        if name not in runs.tensors:
            listed[name] = "the kernel returned none"
        elif case.deterministic or budgeted:
            listed[name] = "checked"
        else:
            listed[name] = "no budget: without deterministic its bits may differ"
    return listed


def flag(case: Case, verdict: Verdict, runs: Observed) -> str:
    """Return what became of `deterministic`."""
    if not case.deterministic:
        return NOT_ASKED
    if any(seen.distinct > 1 for name, seen in runs.tensors.items() if name not in FORWARD):
        return IGNORED
    return HONOURED if verdict.outcome == "PASS" else NOT_PROVED


def admit(case: Case) -> list[str]:
    """Return the reasons to refuse the case: budgets that would pass if no two runs agreed in any element."""
    worst = {
        "elements": 1.0,
        "distinct": float(case.runs),
        "max_difference": 1e300,
        "differing_share": 1.0,
        "rate_bound": 1.0,
    }
    reasons = []
    for budget in case.budgets:
        answer = evaluate(budget, case, {budget.tensor: Metrics(worst)}, {})
        if answer.held is None:
            reasons.append(f"{budget.tensor}: budget {budget.name} cannot be evaluated: {answer.words}")
        elif answer.held:
            limit = f"{budget.metric} limit {budget.limit:.4g}"
            reasons.append(
                f"{budget.tensor}: {case.runs} runs of which no two agree would pass {budget.name} ({limit})"
            )
    return reasons


def _powerless(case: Case, metrics: Mapping[str, Metrics], runs: Observed, no_twin: str | None) -> Iterator[Finding]:
    """Yield a finding for each tensor whose verdict an order of adds could not have changed."""
    if no_twin is not None:
        yield Finding(f"no power: nobody can tell whether an order of adds would show; no shuffled twin: {no_twin}")
        return
    for name, seen in runs.tensors.items():
        if "says_less" in metrics[name].values and seen.distinct == 1:
            yield Finding(
                f"no power: {name} is the same number everywhere, or holds NaN or infinity where random orders of the "
                "adds give numbers: it would repeat whatever the order",
                tensor=name,
            )
    judged = {budget.tensor for budget in case.budgets} | {"dq"}
    for name in order_dependent(case):
        if name not in runs.tensors or not (case.deterministic or name in judged):
            continue
        patterns = metrics[name].values.get("distinct_shuffled", 0.0)
        if patterns <= 1 and runs.tensors[name].distinct == 1:
            yield Finding(
                f"no power: random orders of the adds give the same bits of {name} too, so that a kernel without any "
                "order would pass (two addends commute: it takes three KV tiles, or three query heads a KV head, and "
                "elements enough)",
                tensor=name,
                metric="distinct_shuffled",
                value=patterns,
                limit=2.0,
            )


def _finding(answer: Evaluation, case: Case, metrics: Mapping[str, Metrics], runs: Observed) -> Finding:
    budget = answer.budget
    name, metric = budget.tensor, budget.metric
    seen = runs.tensors.get(name)
    where = metrics[name].where.get(metric) if name in metrics else None
    if answer.value is None or seen is None:
        words = f"{name} {metric}: cannot be evaluated: {answer.words}"
    elif answer.held is False and seen.distinct > 1:
        words = _differs(case, name, seen, metrics)
        where = where or metrics[name].where.get("distinct")
    else:
        words = _agrees(name, seen, metrics)
    if answer.value is not None and metric != "distinct":
        words = f"{name} {metric} {answer.value:.4g}, limit {answer.limit:.4g} ({answer.words}); {words}"
    return Finding(
        message=f"{words}; budget {budget.name}: {budget.provenance}",
        tensor=name,
        metric=metric,
        value=answer.value,
        limit=answer.limit,
        where=where,
        budget=budget.name,
        passed=answer.held is True,
    )


def _agrees(name: str, seen: Seen, metrics: Mapping[str, Metrics]) -> str:
    values = metrics[name].values
    noun = "bit pattern" if seen.distinct == 1 else "bit patterns"
    words = f"{name} has {seen.distinct} {noun} in {seen.runs} runs, {seen.strays} of which leave the commonest: "
    words += f"fewer than {values['rate_bound']:.3g} do, at 95 %"
    if "distinct_shuffled" in values:
        words += f"; random orders of the adds give {values['distinct_shuffled']:.0f} patterns"
    return words


def _differs(case: Case, name: str, seen: Seen, metrics: Mapping[str, Metrics]) -> str:
    """Say how many patterns, where the first difference is and what stood there in both runs."""
    difference = seen.difference
    assert difference is not None  # there are two patterns
    values = metrics[name].values
    index = ", ".join(map(str, difference.index))
    share = f"{max(seen.differing)} of {seen.first.numel()} elements at most, largest difference {seen.largest:.3g}"
    words = [
        f"{name} has {seen.distinct} bit patterns in {seen.runs} runs",
        f"first differing at [{index}]: run 0 gave {_hex(difference.first)}, run {difference.run} gave "
        f"{_hex(difference.other)}{_apart(case, name, seen, difference.first, difference.other)}",
        share,
        f"{seen.strays} runs leave the commonest pattern: up to {values['rate_bound']:.3g} of all, at 95 %",
    ]
    if name in FORWARD:
        words[0] = f"the forward has no fixed order: {words[0]}"
    elif case.deterministic:
        words[0] = f"deterministic=True accepted and ignored: {words[0]}"
    return "; ".join(words)


def _hex(value: float) -> str:
    return f"{value:.6g} ({value.hex()})"


def _apart(case: Case, name: str, seen: Seen, first: float, other: float) -> str:
    fp32 = seen.first.element_size() == 4
    spacing = float(ulp(first, FORMATS["fp32" if fp32 else format_name(case, name)]))
    return f", {abs(other - first) / spacing:.3g} ulp" if abs(first) + abs(other) < float("inf") else ""


def _spreads(case: Case, metrics: Mapping[str, Metrics]) -> Iterator[Finding]:
    """Yield what the order costs in accuracy, where the truth was solved for it."""
    for name in order_dependent(case):
        values = metrics[name].values if name in metrics else {}
        if "rmse_deterministic" not in values:
            continue
        low, high, own = (values[key] for key in ("rmse_low", "rmse_high", "rmse_deterministic"))
        inside = "inside" if low <= own <= high else "outside"
        spread = (high - low) / values["rmse"] if values["rmse"] else 0.0
        yield Finding(
            f"{name}: RMSE {low:.6g} to {high:.6g} over {values['runs']:.0f} orders (a range of {spread:.2g} of it), "
            f"{own:.6g} in the deterministic order: {inside}",
            tensor=name,
            metric="rmse",
            value=own,
            passed=True,
        )
