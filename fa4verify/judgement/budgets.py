"""Hold one budget against what was measured (docs/budgets.md: what each kind means and when to use it).

Contract: three answers: held, broken, or cannot be said with the reason why. A limit is always turned into the metric's
own unit, so that messages and the truth's radius can be compared with it. A signed metric is held by its magnitude.
Fails first where something is divided by nothing: a truth of zeros has no relative error, a baseline that is exact
leaves a limit of 0. Neither is an error of evaluation: the first breaks the budget unless the output is zero too, the
second demands exactness and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa4verify.arithmetic.formats import FORMATS
from fa4verify.judgement.layout import format_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fa4verify.vocabulary import Budget, Case, Metrics

RELATIVE_TO_TRUTH = frozenset({"relative_rmse", "worst_row_relative_l2", "gain_error"})
# The truth may be uncertain by this share of a limit.
RADIUS_SHARE = 0.1


@dataclass(frozen=True)
class Evaluation:
    """One budget's answer; `held` is None where it cannot be evaluated and `words` says why."""

    budget: Budget
    held: bool | None
    words: str
    value: float | None = None
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        """Value over limit, None where there is no such number."""
        if self.value is None or not self.limit:
            return None
        return abs(self.value - _centre(self.budget)) / self.limit


def evaluate(
    budget: Budget, case: Case, metrics: Mapping[str, Metrics], baseline: Mapping[str, Metrics], radius: float = 0.0
) -> Evaluation:
    """Evaluate one budget.

    Parameters
    ----------
    budget, case
        The limit, and the case that holds it.
    metrics, baseline
        By tensor: the kernel's, and the baseline kernel's on the same inputs.
    radius
        Bound on |truth - exact| in the tensor's own unit, 0 where nobody certified one.
    """
    if budget.tensor not in metrics:
        return Evaluation(budget, None, f"the kernel returned no {budget.tensor} that could be measured")
    values = metrics[budget.tensor].values
    if budget.metric not in values:
        return _without_metric(budget, values)
    value = values[budget.metric]
    limit, words = _limit(budget, case, values, baseline)
    if limit is None:
        return Evaluation(budget, None, words, value)
    size = abs(value - _centre(budget))
    blur = radius * _metric_per_unit(budget, case, values)
    if _truth_is_blunt(size, limit, blur, case, budget, values):
        words += f"; the truth is certain to {blur:.2g} only, more than {RADIUS_SHARE:.0%} of that"
        return Evaluation(budget, None, words, value, limit)
    return Evaluation(budget, size <= limit, words, value, limit)


def _centre(budget: Budget) -> float:
    """Return what the metric is held near: signed metrics (the means) are held by their magnitude."""
    return budget.value if budget.kind == "equals" else 0.0


def _without_metric(budget: Budget, values: Mapping[str, float]) -> Evaluation:
    elements = int(values.get("elements", 0.0))
    if not elements:
        return Evaluation(budget, True, "no element: shape and dtype are all there is, and they are right")
    if "rmse" not in values:
        if values.get("nonfinite_mismatches", 1.0) == 0:
            return Evaluation(budget, True, f"{elements} elements equal in class and value, none of them finite")
        return Evaluation(budget, None, "no element is finite in truth and output")
    if budget.metric in RELATIVE_TO_TRUTH and values["truth_rms"] == 0:
        words = f"the truth is zero in every finite element, the output is not (rmse {values['rmse']:.3g})"
        return Evaluation(budget, False, words)
    return Evaluation(budget, None, f"{budget.metric} was not measured on {budget.tensor}")


def _limit(
    budget: Budget, case: Case, values: Mapping[str, float], baseline: Mapping[str, Metrics]
) -> tuple[float | None, str]:
    """Return the limit in the metric's own unit and how it came about, or None and why there is none."""
    kind, metric = budget.kind, budget.metric
    if kind == "absolute":
        return budget.limit, "absolute"
    if kind == "ulp":
        return budget.limit, f"in ulp of {format_name(case, budget.tensor)}"
    if kind == "equals":
        return budget.limit, f"away from {budget.value:.6g}"
    if kind == "ratio_to_baseline":
        if budget.tensor not in baseline or metric not in baseline[budget.tensor].values:
            return None, f"no {metric} of a baseline to compare with ({case.baseline or 'the case names none'})"
        base = abs(baseline[budget.tensor].values[metric])
        return budget.limit * base, f"{budget.limit:.4g} x {base:.4g} of the baseline {case.baseline}"
    if kind == "ratio_to_floor":
        floor = _floor(metric, values)
        if floor is None:
            return None, f"{metric} has no rounding floor (rmse, relative_rmse and max_abs have)"
        return budget.limit * floor, f"{budget.limit:.4g} x {floor:.4g} of a correctly rounded output"
    if "expected_rmse" not in values:
        return None, f"no moments of the truth to expect {metric} of {budget.tensor} from"
    model = values["expected_rmse"]
    return budget.limit * model, f"{budget.limit:.4g} x {model:.4g} expected of a correct kernel"


def _floor(metric: str, values: Mapping[str, float]) -> float | None:
    if metric == "relative_rmse":
        return values["floor_rmse"] / values["truth_rms"] if values["truth_rms"] else 0.0
    return values.get({"rmse": "floor_rmse", "max_abs": "floor_max_abs"}.get(metric, ""))


def _metric_per_unit(budget: Budget, case: Case, values: Mapping[str, float]) -> float:
    """Return by how much the metric moves when the truth moves by one unit of the tensor."""
    truth_rms = values.get("truth_rms", 0.0)
    if budget.metric in RELATIVE_TO_TRUTH:
        return 1.0 / truth_rms if truth_rms else 0.0
    if budget.metric.startswith("ulp_") or budget.metric == "mean_ulp":
        # An ulp is 2u of the power of two below; a typical element lies between that and twice it.
        return 1.0 / (truth_rms * FORMATS[format_name(case, budget.tensor)].unit_roundoff) if truth_rms else 0.0
    # Relative errors of exp2 and counts: their truth is 2^x correctly rounded to float64.
    return 1.0 if budget.metric in {"rmse", "max_abs", "mean_error"} else 0.0


def _truth_is_blunt(
    size: float, limit: float, blur: float, case: Case, budget: Budget, values: Mapping[str, float]
) -> bool:
    """Say whether the truth's own uncertainty could turn the answer."""
    if blur == 0 or blur <= RADIUS_SHARE * limit or size - blur > limit:
        return False
    if size == 0 and limit == 0:
        # Nothing but exactness holds, and the output is the truth in every element: then a rounding unit is the scale.
        unit = FORMATS[format_name(case, budget.tensor)].unit_roundoff * values.get("truth_rms", 0.0)
        return blur > RADIUS_SHARE * unit * _metric_per_unit(budget, case, values)
    return True
