"""Room 3: what is true. `solve` gives the float64 truth of a case, `solve_backward` alone that of its gradients.

Contract: one answer for each operation, from the case and the inputs alone; nothing here knows a kernel's arithmetic
(import-linter holds that), so that a fault shared by kernel and truth cannot cancel. `mp` is the tests' second opinion
and is not used by either. Both come with a radius certified on samples.
"""

from __future__ import annotations

import numpy as np

from fa4verify.gpus import FAST_FP64, listed
from fa4verify.references import backward, ball, ball_backward, device64, exp2, fp64
from fa4verify.references.problem import Problem
from fa4verify.vocabulary import Case, Inputs, Truth

__all__ = ["solve", "solve_backward"]


def solve(case: Case, inputs: Inputs, *, device: str | None = None) -> Truth:
    """Return the truth of a case: its tensors, radius, and the moments its budgets need.

    The tensors are o and lse (forward), y (exp2), or dq, dk, dv, delta and dsink (backward). On a `device` ("cuda:0")
    attention is solved there if it has fast float64 (device64.py); certified it is on the CPU.
    """
    if case.operation == "exp2":
        return exp2.solve(case, inputs)
    if case.operation == "backward":
        return solve_backward(case, inputs, device=device)
    problem = Problem.of(case, inputs)
    moments = any(budget.kind == "expected_error" for budget in case.budgets)
    place = _place(device)
    if place is not None and device64.serves(problem):
        result = device64.forward(problem, place, moments=moments)
    else:
        place, result = None, fp64.forward(problem, moments=moments)
    tensors: dict[str, np.ndarray] = {name: result.pop(name) for name in ("o", "lse")}
    if case.truth == "draws":  # products of two of them do not fit 53 bits
        provenance = {"reference": "float64 in blocks, of the draws before any rounding", "radius": "not certified"}
        return Truth(tensors=tensors, moments=result, provenance=provenance)
    certificate = ball.certify(problem, tensors, seed=case.id)
    return Truth(
        tensors=tensors,
        radius=certificate.radius,
        sampled_rows=certificate.rows,
        moments=result,
        provenance={"reference": _words(place), "radius": certificate.provenance},
    )


def solve_backward(case: Case, inputs: Inputs, *, device: str | None = None) -> Truth:
    """Return the truth of a case's gradients: tensors dq, dk, dv, delta and, with a learnable sink, dsink.

    `inputs` holds dout (shaped like o) and, where the loss depends on LSE, dlse (batch, heads, seqlen_q), beside the
    forward's tensors. LSE and O are the exact ones, not a kernel's own. Moments, always: `queries_without_key`
    (seqlen_q,) and `keys_without_query` (seqlen_k,), whose gradients are exactly 0; with a budget of kind
    expected_error those of backward.py too, and LSE.
    """
    problem, upstream = Problem.of(case, inputs), backward.Upstream.of(inputs)
    moments = any(budget.kind == "expected_error" for budget in case.budgets)
    place = _place(device)
    if place is not None and device64.serves(problem, upstream):
        result = device64.backward(problem, upstream, place, moments=moments)
    else:
        place, result = None, backward.backward(problem, upstream, moments=moments)
    certificate = ball_backward.certify(problem, upstream, result, seed=case.id)
    if not moments:
        del result["lse"]
    first, last = problem.visible(np.arange(problem.q.shape[1]))
    unseen = np.ones(problem.k.shape[1], dtype=np.bool_)
    for start, stop in zip(first, last, strict=True):
        unseen[start:stop] = False
    tensors: dict[str, np.ndarray] = {
        name: result.pop(name) for name in ("dq", "dk", "dv", "delta", "dsink") if name in result
    }
    return Truth(
        tensors=tensors,
        radius=certificate.radius,
        sampled_rows=certificate.rows,
        moments={**result, "queries_without_key": first >= last, "keys_without_query": unseen},
        provenance={"reference": _words(place), "radius": certificate.provenance},
    )


def _place(device: str | None) -> str | None:
    """Return the device if its float64 units are fast."""
    if device is None or not device.startswith("cuda"):
        return None
    gpus, index = listed(), int(device.partition(":")[2] or 0)
    return device if index < len(gpus) and gpus[index].capability in FAST_FP64 else None


def _words(place: str | None) -> str:
    return "float64 in blocks" + ("" if place is None else f" on {place}")
