"""The whole flow on one screen: draw, run, solve, measure, judge."""

from __future__ import annotations

from fa4verify import cases, judgement, kernels, references
from fa4verify.vocabulary import Case, Record


def verify(case: Case) -> Record:
    """Take one case through all rooms."""
    inputs = cases.draw(case)
    output = kernels.kernel(case.kernel).forward(**inputs.tensors, softmax_scale=case.softmax_scale)
    truth = references.solve(case, inputs)
    metrics = judgement.measure(output, truth)
    return Record(case=case, metrics=metrics, verdict=judgement.judge(case, metrics))
