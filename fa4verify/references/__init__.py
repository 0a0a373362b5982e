"""Room 3: what is true. `solve` gives the float64 truth of a case, with a radius certified on sampled rows.

Contract: one answer for each operation, from the case and the inputs alone; nothing here knows a kernel's arithmetic
(import-linter holds that), so that a fault shared by kernel and truth cannot cancel. `mp` is the tests' second opinion
and is not used by `solve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.references import ball, exp2, fp64
from fa4verify.references.problem import Problem
from fa4verify.vocabulary import Case, Inputs, Truth

if TYPE_CHECKING:
    import numpy as np

__all__ = ["solve"]


def solve(case: Case, inputs: Inputs) -> Truth:
    """Return the truth of a case: tensors o and lse (forward) or y (exp2), radius, and the moments its budgets need."""
    if case.operation == "exp2":
        return exp2.solve(case, inputs)
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
