"""Room 3: what is true. `solve` gives the float64 truth of a case, `solve_backward` alone that of its gradients.

Contract: one answer for each operation, from the case and the inputs alone; nothing here knows a kernel's arithmetic
(import-linter holds that), so that a fault shared by kernel and truth cannot cancel. `mp` is the tests' second opinion
and is not used by either. Both come with a radius certified on samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.references import backward, ball, ball_backward, exp2, fp64
from fa4verify.references.problem import Problem
from fa4verify.vocabulary import Case, Inputs, Truth

if TYPE_CHECKING:
    import numpy as np

__all__ = ["solve", "solve_backward"]


def solve(case: Case, inputs: Inputs) -> Truth:
    """Return the truth of a case: its tensors, radius, and the moments its budgets need.

    The tensors are o and lse (forward), y (exp2), or dq, dk, dv, delta and dsink (backward).
    """
    if case.operation == "exp2":
        return exp2.solve(case, inputs)
    if case.operation == "backward":
        return solve_backward(case, inputs)
    problem = Problem.of(case, inputs)
    result = fp64.forward(problem, moments=any(budget.kind == "expected_error" for budget in case.budgets))
    tensors: dict[str, np.ndarray] = {name: result.pop(name) for name in ("o", "lse")}
    certificate = ball.certify(problem, tensors, seed=case.id)
    return Truth(
        tensors=tensors,
        radius=certificate.radius,
        sampled_rows=certificate.rows,
        moments=result,
        provenance={"reference": "float64 in blocks", "radius": certificate.provenance},
    )


def solve_backward(case: Case, inputs: Inputs) -> Truth:
    """Return the truth of a case's gradients: tensors dq, dk, dv, delta and, with a learnable sink, dsink.

    `inputs` holds dout (shaped like o) and, where the loss depends on LSE, dlse (batch, heads, seqlen_q), beside the
    forward's tensors. LSE and O are the exact ones, not a kernel's own.
    """
    problem, upstream = Problem.of(case, inputs), backward.Upstream.of(inputs)
    result = backward.backward(
        problem, upstream, moments=any(budget.kind == "expected_error" for budget in case.budgets)
    )
    certificate = ball_backward.certify(problem, upstream, result, seed=case.id)
    del result["lse"]
    tensors: dict[str, np.ndarray] = {
        name: result.pop(name) for name in ("dq", "dk", "dv", "delta", "dsink") if name in result
    }
    return Truth(
        tensors=tensors,
        radius=certificate.radius,
        sampled_rows=certificate.rows,
        moments=result,
        provenance={"reference": "float64 in blocks", "radius": certificate.provenance},
    )
