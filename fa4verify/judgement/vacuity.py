"""A case whose budgets a trivial output would pass judges nothing, and is refused.

Contract: zeros, the truth's mean everywhere, noise of the truth's mean and scale, and the truth's own elements
shuffled are put through the case's budgets, tensor by tensor; whichever passes all budgets of a tensor is named. A
trivial output that is the truth to within four rounding floors is no counterexample (V = 1 makes O constant) and is
left out, but one must remain. Shuffling also catches a budget that looks at the distribution of values only.
Fails to notice a budget that is lax without being vacuous: mutants are for that (design rule 8).
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fa4verify.arithmetic.formats import round_to
from fa4verify.judgement.budgets import Evaluation, evaluate
from fa4verify.judgement.layout import given, layout
from fa4verify.judgement.metrics import measure
from fa4verify.vocabulary import Budget, Case, Metrics, Output, Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    Trivial = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]

# Within this many rounding floors a trivial output counts as the truth itself.
INDISTINGUISHABLE = 4.0
# Queries are thinned evenly so that no more than about this many elements are tried.
ELEMENTS = 1 << 18
# Each tensor with what must be thinned like it, and the axis of its queries (keys for dK and dV).
_OF_KEYS = {"keys_without_query": 0}
CUT: dict[str, dict[str, int]] = {
    "o": {"o": 1, "lse": 2, "spread": 1, "row_max": 2},
    "lse": {"lse": 2, "row_max": 2},
    "y": {"y": 0, "declared": 0},
    "dq": {"dq": 1, "dq_spread": 1, "dq_from_delta": 1, "lse": 2, "queries_without_key": 0},
    "dk": {"dk": 1, "dk_spread": 1, "dk_from_delta": 1, **_OF_KEYS},
    "dv": {"dv": 1, "dv_spread": 1, **_OF_KEYS},
    "delta": {"delta": 2, "delta_from_o": 2, "delta_from_p": 2},
    "dsink": {"dsink": 0, "dsink_from_delta": 0},
}


def _zeros(finite: NDArray[np.float64], _: np.random.Generator) -> NDArray[np.float64]:
    return np.zeros_like(finite)


def _mean(finite: NDArray[np.float64], _: np.random.Generator) -> NDArray[np.float64]:
    return np.full_like(finite, finite.mean())


def _noise(finite: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Noise of the truth's mean and deviation; where it has none, of its size; where that is 0 too, of size 1."""
    mean = float(finite.mean())
    scale = float(finite.std()) or abs(mean) or 1.0
    return mean + scale * generator.standard_normal(finite.shape)


def _shuffled(finite: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    return generator.permutation(finite)


TRIVIAL: dict[str, Trivial] = {
    "zeros": _zeros,
    "the truth's mean everywhere": _mean,
    "noise of the truth's scale": _noise,
    "the truth's elements shuffled": _shuffled,
}


def admit(
    case: Case, truth: Truth, baseline_metrics: Mapping[str, Metrics], baseline: Output | None = None
) -> list[str]:
    """Return the reasons to refuse the case, none if its budgets can tell attention from something trivial.

    `baseline` is needed where a budget compares with its bits.
    """
    reasons = []
    for tensor in sorted({budget.tensor for budget in case.budgets}):
        if tensor not in truth.tensors:
            reasons.append(f"a budget is on {tensor}, of which a {case.operation} has no truth")
        elif truth.tensors[tensor].size:
            part, thinned = _part(truth, tensor), _part_of_output(baseline, truth, tensor)
            reasons.extend(_refusals(case, tensor, part, baseline_metrics, thinned))
    return reasons


def _refusals(
    case: Case, tensor: str, truth: Truth, baseline: Mapping[str, Metrics], output: Output | None
) -> Iterator[str]:
    budgets = [budget for budget in case.budgets if budget.tensor == tensor]
    tried = 0
    for name, values in _outputs(case, tensor, truth):
        metrics = measure(case, _as_output(tensor, values), truth, baseline=output)
        measured = metrics[tensor].values
        same_class = not measured["nonfinite_mismatches"] and not measured.get("keyless_rows_not_zero")
        if same_class and _is_the_truth(measured):
            continue
        tried += 1
        answers = [evaluate(budget, case, metrics, baseline) for budget in budgets]
        unsaid = [answer for answer in answers if answer.held is None]
        if unsaid and "rmse" in measured:
            yield f"{tensor}: budget {unsaid[0].budget.name} cannot be evaluated: {unsaid[0].words}"
            return
        if same_class and all(answer.held for answer in answers):
            yield f"{tensor}: {name} would pass {'; '.join(map(_told, answers))}"
    if not tried:
        yield f"{tensor}: zeros, a constant and noise are all the truth itself; no budget can fail"


def _outputs(case: Case, tensor: str, truth: Truth) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield trivial outputs by name: trivial where the truth is finite, right in class elsewhere."""
    exact = truth.tensors[tensor]
    shape = layout(case, tensor, exact.shape)
    finite = np.isfinite(exact)
    generator = np.random.Generator(np.random.Philox(key=zlib.crc32(f"{case.id}/{tensor}".encode())))
    if not finite.any():  # then the table of classes is all there is to break
        yield "finite numbers", generator.standard_normal(exact.shape)
        return
    for name, make in TRIVIAL.items():
        values = exact.copy()
        values[finite] = make(exact[finite], generator)
        yield name, round_to(values, shape.format)


def _as_output(tensor: str, values: NDArray[np.float64]) -> Output:
    given: dict[str, Any] = {tensor: torch.from_numpy(values)}
    return Output(**given)


def _is_the_truth(values: Mapping[str, float]) -> bool:
    return "rmse" in values and values["rmse"] <= INDISTINGUISHABLE * values["floor_rmse"]


def _told(answer: Evaluation) -> str:
    budget: Budget = answer.budget
    if answer.value is None or answer.limit is None:
        return f"{budget.name} ({answer.words})"
    return f"{budget.name} ({budget.metric} {answer.value:.3g}, limit {answer.limit:.3g} {answer.words})"


def _kept(truth: Truth, tensor: str) -> NDArray[np.int64]:
    """Return evenly spaced queries, fewer than there are only where the tensor is large."""
    size, count = truth.tensors[tensor].size, truth.tensors[tensor].shape[CUT[tensor][tensor]]
    keep = max(1, int(count * min(1.0, ELEMENTS / size)))
    return np.linspace(0, count - 1, keep).astype(np.int64)


def _part_of_output(output: Output | None, truth: Truth, tensor: str) -> Output | None:
    """Return one tensor of an output, at the queries that `_part` keeps."""
    found = None if output is None else given(output, tensor)
    if found is None:
        return None
    rows = torch.from_numpy(_kept(truth, tensor))
    cut: dict[str, Any] = {tensor: found.index_select(CUT[tensor][tensor], rows)}
    return Output(**cut)


def _part(truth: Truth, tensor: str) -> Truth:
    """Return the truth of one tensor, at evenly spaced queries only where it is large."""
    axes, rows = CUT[tensor], _kept(truth, tensor)
    keep, count = len(rows), truth.tensors[tensor].shape[axes[tensor]]

    def cut(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values if keep == count or name not in axes else np.take(values, rows, axis=axes[name])

    tensors = {name: cut(name, np.asarray(truth.tensors[name])) for name in axes if name in truth.tensors}
    moments = {name: cut(name, np.asarray(values)) for name, values in truth.moments.items()}
    return replace(truth, tensors=tensors, moments=moments)
