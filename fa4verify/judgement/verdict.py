"""Budgets decide, classes decide before them, and what cannot be said is said.

Contract: FAIL if a shape, a dtype, a class, a row without keys or a budget is wrong; else INCONCLUSIVE if a budget
could not be evaluated, the truth is too blunt for its limit, or a feature under test was never active; else PASS. A
case whose budgets are all on the baseline's bits asks for these alone: a class or a row that is not the truth's is then
the baseline's too, or a budget breaks; the counts stay among the metrics. A kernel may return O alone, or gradients
without delta: budgets on a by-product that it keeps to itself are not judged, and `checked` says so. The message of a
finding is the report: value, limit and where it comes from, ratio, index, bits. Same arguments, same verdict: no order,
no machine, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import ulp
from fa4verify.judgement.bits import of_bits
from fa4verify.judgement.budgets import Evaluation, evaluate
from fa4verify.judgement.classes import in_words
from fa4verify.judgement.diagnosis import MISMATCH, diagnose
from fa4verify.judgement.layout import EXPECTED_TENSORS, contract_breach, given, layout
from fa4verify.vocabulary import ACTIVITY, EIGHT_BITS, Case, Finding, Metrics, Output, Truth, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

# What a kernel may keep to itself.
BY_PRODUCTS = frozenset({"lse", "delta"})


def judge(
    case: Case,
    metrics: Mapping[str, Metrics],
    baseline_metrics: Mapping[str, Metrics],
    output: Output,
    truth: Truth,
) -> Verdict:
    """Return the verdict with a finding for every budget, every broken rule and every strong hint at the cause."""
    failed, unsaid = _rules(case, metrics, output, truth), _inactive(case, output)
    passed: list[Finding] = []
    returned = [
        budget
        for budget in case.budgets
        if budget.tensor not in BY_PRODUCTS or given(output, budget.tensor) is not None
    ]
    for budget in returned:
        radius = truth.radius.get(budget.tensor, 0.0)
        answer = evaluate(budget, case, metrics, baseline_metrics, radius)
        finding = _finding(answer, case, metrics, output, truth)
        (unsaid if answer.held is None else passed if answer.held else failed).append(finding)
    if not returned:
        names = " and no ".join(sorted({budget.tensor for budget in case.budgets}))
        why = (
            f"the kernel returned no {names}, and no budget is on another tensor" if names else "the case has no budget"
        )
        unsaid.append(Finding(f"nothing was judged: {why}"))
    if failed:
        hints = [
            Finding(hint if hint.startswith(MISMATCH) else f"hint: {hint}", tensor=tensor)
            for tensor, hint in (*diagnose(case, output, truth), *_clamped(output))
        ]
        return Verdict("FAIL", (*failed, *hints, *unsaid, *passed))
    if unsaid:
        return Verdict("INCONCLUSIVE", (*unsaid, *passed))
    return Verdict("PASS", tuple(passed))


def checked(case: Case, output: Output, truth: Truth) -> dict[str, str]:
    """List every tensor of the operation: "checked", or why not.

    Also lists, as `activity.NAME`, each counter that the case requires and the kernel does not keep: its absence
    proves nothing either way.
    """
    listed = {}
    for tensor in (*EXPECTED_TENSORS[case.operation], *truth.tensors):
        if given(output, tensor) is None:
            listed[tensor] = "the kernel returned none"
        elif tensor not in truth.tensors:
            listed[tensor] = "the reference has no truth for it"
        elif not any(budget.tensor == tensor for budget in case.budgets):
            listed[tensor] = "no budget: only the classes of its values were compared"
        else:
            listed[tensor] = "checked"
    for counter in case.requires:
        if counter not in output.activity:
            listed[f"activity.{counter}"] = "the kernel does not count it"
    return listed


def _rules(case: Case, metrics: Mapping[str, Metrics], output: Output, truth: Truth) -> list[Finding]:
    """Return what is wrong whatever the budgets say."""
    found = []
    for tensor in truth.tensors:
        if breach := contract_breach(case, output, truth, tensor):
            found.append(Finding(breach, tensor=tensor))
        measured = metrics.get(tensor)
        if measured is None or of_bits(case):
            continue
        if wrong := in_words(measured.classes):
            count = measured.values["nonfinite_mismatches"]
            found.append(
                Finding(f"{tensor}: {wrong}", tensor=tensor, metric="nonfinite_mismatches", value=count, limit=0.0)
            )
        if rows := measured.values.get("keyless_rows_not_zero", 0.0):
            what = "keys without a query" if tensor in ("dk", "dv") else "rows without a key"
            message = f"{tensor}: {rows:.0f} {what} are not exactly 0"
            found.append(Finding(message, tensor=tensor, metric="keyless_rows_not_zero", value=rows, limit=0.0))
    return found


def _inactive(case: Case, output: Output) -> list[Finding]:
    """Return the features that the case is about and that did not happen."""
    return [
        Finding(f"never active: {counter} = 0 ({ACTIVITY.get(counter, 'a counter of the kernel')})", metric=counter)
        for counter in case.requires
        if counter in output.activity and output.activity[counter] == 0
    ]


def _clamped(output: Output) -> list[tuple[str, str]]:
    """Return how many P were clamped, if any, and where the first one is if the kernel counts by row."""
    count = output.activity.get("p_saturated", 0)
    if not count:
        return []
    words = f"{count:.0f} P clamped: largest P {output.activity.get('max_p', 0):.6g}"
    per_row = output.activity_per_row.get("p_saturated")
    if per_row is not None and per_row.any():
        worst = np.unravel_index(int(per_row.argmax()), per_row.shape)
        words += f"; most of them, {int(per_row.max())}, in row [{', '.join(map(str, worst))}]"
    return [("o", words)]


def _finding(answer: Evaluation, case: Case, metrics: Mapping[str, Metrics], output: Output, truth: Truth) -> Finding:
    budget = answer.budget
    where = None
    if budget.tensor in metrics:
        places = metrics[budget.tensor].where
        where = places.get(budget.metric, places.get("max_abs"))
    parts = list(_sentence(answer))
    if answer.held is False and case.baseline in EIGHT_BITS and budget.kind == "ratio_to_baseline":
        parts[0] = f"format ordering violated: {case.dtype} is worse than {case.baseline}; {parts[0]}"
    if answer.held is False and where is not None:
        parts.append(_at(case, budget.tensor, where, output, truth))
    parts.append(f"budget {budget.name}: {budget.provenance}")
    return Finding(
        message="; ".join(parts),
        tensor=budget.tensor,
        metric=budget.metric,
        value=answer.value,
        limit=answer.limit,
        where=where,
        budget=budget.name,
        passed=answer.held is True,
    )


def _sentence(answer: Evaluation) -> Iterator[str]:
    budget = answer.budget
    subject = f"{budget.tensor} {budget.metric}"
    if answer.value is None or answer.limit is None:
        prefix = {None: "cannot be evaluated: ", True: "", False: ""}[answer.held]
        yield f"{subject}: {prefix}{answer.words}"
        return
    sign = {None: "?", True: "<=", False: ">"}[answer.held]
    ratio = "" if answer.ratio is None else f", {answer.ratio:.3g} of the limit"
    if budget.kind == "equals":
        yield f"{subject} {answer.value:.6g}, {sign} {answer.limit:.4g} {answer.words}{ratio}"
    else:
        yield f"{subject} {answer.value:.4g} {sign} {answer.limit:.4g} ({answer.words}){ratio}"


def _at(case: Case, tensor: str, where: tuple[int, ...], output: Output, truth: Truth) -> str:
    """Return index, both values in decimal and hex, and the distance in ulp; of a row, its worst element."""
    exact, got = truth.tensors[tensor], given(output, tensor)
    assert got is not None  # it was measured
    want_part: NDArray[np.float64] = np.asarray(exact[where], dtype=np.float64)
    got_part: NDArray[np.float64] = got[where].detach().double().cpu().numpy()
    if want_part.ndim:
        off = np.where(np.isfinite(want_part) & np.isfinite(got_part), np.abs(got_part - want_part), -1.0)
        where = (*where, int(np.argmax(off)))
    want, have = float(exact[where]), float(got[where])
    distance = abs(have - want) / float(ulp(np.array(want), layout(case, tensor, exact.shape).format))
    index = ", ".join(map(str, where))
    return f"at [{index}] got {have:.6g} ({have.hex()}), want {want:.9g} ({want.hex()}), {distance:.3g} ulp"
