"""How far a tensor is from its truth: finite numbers and counts (docs/metrics.md lists every one).

Contract: one pass in chunks, float64, memory independent of the tensor's size. Errors exist only between finite
values; everything else is counted by class (classes.py). A metric that has no value (no finite pair, one row only, a
truth of zeros to be relative to) is absent, never NaN. The baseline's metrics come from this same function.
Fails first where one number hides another: an RMSE does not see one wrong row of many, a cosine sees even less
(0.9988 with one row of 64 halved), so `worst_row_relative_l2` stands beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.arithmetic.formats import round_to, ulp
from fa4verify.judgement.bits import unlike
from fa4verify.judgement.classes import classify, mismatches, named, tally
from fa4verify.judgement.expected import lse_squared_error, o_squared_error
from fa4verify.judgement.expected_gradients import NEEDS, gradient_model
from fa4verify.judgement.exponential import Exponential
from fa4verify.judgement.fa_rule import fa_rule
from fa4verify.judgement.layout import Layout, given, layout, per_row_of_o
from fa4verify.judgement.profile import Errors, Profiler
from fa4verify.judgement.split import split
from fa4verify.judgement.sums import Largest, Quantiles, UnitMean
from fa4verify.vocabulary import Case, Metrics, Output, Truth

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    Model = Callable[[slice, NDArray[np.float64]], NDArray[np.float64]]

ULP_QUANTILES = {"ulp_p50": 0.5, "ulp_p99": 0.99, "ulp_p999": 0.999}


def measure(
    case: Case,
    output: Output,
    truth: Truth,
    pt: Output | None = None,
    baseline: Output | None = None,
    *,
    on_inputs: Truth | None = None,
    profiles: bool = False,
) -> dict[str, Metrics]:
    """Return the metrics of every tensor of the truth that the kernel gave in the right shape.

    Parameters
    ----------
    case, output, truth
        The problem, the kernel's answer and the reference's.
    pt
        Output of low-precision attention (`standard` with `reorder_ops`); with it, O also gets FlashAttention's own
        rule (fa_rule.py).
    baseline
        Output of the baseline kernel; with it, every tensor that it gave is also compared bit by bit (bits.py).
    on_inputs
        The truth of the inputs as rounded, where `truth` is that of the draws: O then gets split.py's metrics.
    profiles
        Add to each tensor where its error lies, for the figures (profile.py).
    """
    found = {}
    for name, exact in truth.tensors.items():
        got = given(output, name)
        if got is None or tuple(got.shape) != exact.shape:
            continue
        extra = fa_rule(case, output, truth, pt) if name == "o" and pt is not None else {}
        if name == "o" and on_inputs is not None:
            extra = extra | split(output, truth, on_inputs)
        found[name] = _measure(case, name, got, truth, extra, baseline, profiles)
    return found


def _measure(
    case: Case,
    name: str,
    got: torch.Tensor,
    truth: Truth,
    extra: dict[str, float],
    baseline: Output | None,
    profiles: bool,
) -> Metrics:
    exact = np.asarray(truth.tensors[name], dtype=np.float64)
    if not exact.size:
        return Metrics({"elements": 0.0, "nonfinite_mismatches": 0.0, **_finite(extra)})
    shape = layout(case, name, exact.shape)
    sums = _Sums(shape, profile=Profiler(shape, truth) if profiles else None)
    special = Exponential() if name == "y" else None
    want_rows, got_rows = shape.matrix(exact), got.reshape(-1, shape.row)
    declared = truth.moments.get("declared") if name == "y" else None
    declared_rows = None if declared is None else shape.matrix(declared)
    model = _model(case, name, truth, shape)
    keyless = _keyless(name, truth)
    for rows in shape.chunks():
        want, have = want_rows[rows], got_rows[rows].detach().double().cpu().numpy()
        rounded = round_to(want, shape.format)
        with np.errstate(invalid="ignore"):  # a signalling NaN of the declaration becomes a quiet one
            intended = rounded if declared_rows is None else declared_rows[rows].astype(np.float64)
        sums.add(rows.start, want, have, rounded, intended)
        if model is not None:
            with np.errstate(invalid="ignore", over="ignore"):  # moments of a poisoned row, which `both` leaves out
                sums.expected += float(np.where(sums.both, model(rows, want), 0.0).sum())
        if special is not None:
            special.add(rows.start, want, have, None if declared_rows is None else intended)
        if keyless is not None and keyless[rows].any():
            sums.keyless_rows_not_zero = (sums.keyless_rows_not_zero or 0) + int(
                (keyless[rows] & (have != 0).any(axis=1)).sum()
            )
    values, where = sums.finish(model is not None)
    if special is not None:
        values |= special.values()
        where |= {metric: shape.element(position) for metric, position in special.where().items()}
    count, first = unlike(name, got, baseline)
    profile = None if sums.profile is None else sums.profile.finish(values, where)
    return Metrics(_finite(values | extra | count), where | first, named(sums.classes), profile)


def _keyless(name: str, truth: Truth) -> NDArray[np.bool_] | None:
    """Return for each row whether it must be exactly 0: no key for the query, no query for the key."""
    if name == "o" and "lse" in truth.tensors:
        keyless: NDArray[np.bool_] = np.isneginf(per_row_of_o(truth.tensors["lse"]))
        return keyless
    of = {"dq": "queries_without_key", "dk": "keys_without_query", "dv": "keys_without_query"}.get(name)
    if of is None or of not in truth.moments:
        return None
    batch, _, heads, _ = truth.tensors[name].shape
    rows = truth.moments[of].astype(np.bool_)
    return np.tile(np.repeat(rows, heads), batch)


def _model(case: Case, name: str, truth: Truth, shape: Layout) -> Model | None:
    """Return the expected squared error as a function of a slice of rows, None without the moments."""
    moments = truth.moments
    if name in NEEDS:
        return gradient_model(case, name, moments)
    if name == "lse" and "row_max" in moments:
        row_max = shape.matrix(moments["row_max"])
        return lambda rows, want: lse_squared_error(case, want, row_max[rows])
    if name == "o" and "row_max" in moments and "spread" in moments:
        spread, row_max_of_o = shape.matrix(moments["spread"]), per_row_of_o(moments["row_max"])
        return lambda rows, want: o_squared_error(case, want, spread[rows], row_max_of_o[rows, None])
    return None


@dataclass
class _Sums:
    """Everything that is added up over the chunks of one tensor."""

    shape: Layout
    profile: Profiler | None = None
    classes: NDArray[np.int64] = field(default_factory=lambda: np.zeros((4, 4), dtype=np.int64))
    count: int = 0
    error: float = 0.0
    truth: float = 0.0
    along: float = 0.0  # sum of error * truth
    floor: float = 0.0
    expected: float = 0.0
    floor_max: Largest = field(default_factory=Largest)
    error_max: Largest = field(default_factory=Largest)
    ulp_max: Largest = field(default_factory=Largest)
    worst_row: Largest = field(default_factory=Largest)
    worst_zero_row: Largest = field(default_factory=Largest)
    quantiles: Quantiles = field(default_factory=Quantiles)
    mean: UnitMean = field(default_factory=UnitMean)
    mean_ulp: UnitMean = field(default_factory=UnitMean)
    keyless_rows_not_zero: int | None = None
    both: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def add(
        self,
        first_row: int,
        want: NDArray[np.float64],
        have: NDArray[np.float64],
        rounded: NDArray[np.float64],
        intended: NDArray[np.float64],
    ) -> None:
        """Take in some rows; `intended` decides the class that is expected."""
        start = first_row * self.shape.row
        actual, expected = classify(have), classify(intended)
        self.classes += tally(expected, actual)
        both = self.both = (actual == 0) & (expected == 0) & np.isfinite(rounded) & np.isfinite(want)
        safe = np.where(both, want, 0.0)
        error = np.where(both, have, 0.0) - safe
        size = np.abs(error)
        floor = np.abs(np.where(both, rounded, 0.0) - safe)
        spacing = ulp(safe, self.shape.format)
        ulps = size / spacing
        self.count += int(both.sum())
        self.error += float((error * error).sum())
        self.truth += float((safe * safe).sum())
        self.along += float((error * safe).sum())
        self.floor += float((floor * floor).sum())
        self.floor_max.add(floor, start)
        self.error_max.add(np.where(both, size, -1.0), start)
        self.ulp_max.add(np.where(both, ulps, -1.0), start)
        self.quantiles.add(ulps[both])
        scaled = both & (safe != 0)  # zero has no binade
        for mean, values, there in (
            (self.mean, error, both),
            (self.mean_ulp, np.where(scaled, error, 0.0) / spacing, scaled),
        ):
            if self.shape.rows_are_units:
                mean.add(values.sum(axis=1), there.sum(axis=1).astype(np.float64))
            else:
                mean.add(values.ravel(), there.ravel().astype(np.float64))
        if self.profile is not None:
            self.profile.add(first_row, Errors(error, floor, spacing, safe, both))
        if self.shape.has_rows:
            self._rows(first_row, error, safe)

    def _rows(self, first_row: int, error: NDArray[np.float64], safe: NDArray[np.float64]) -> None:
        norm, off = np.sqrt((safe * safe).sum(axis=1)), np.sqrt((error * error).sum(axis=1))
        zero = norm == 0
        self.worst_row.add(np.where(zero, -1.0, off / np.where(zero, 1.0, norm)), first_row)
        self.worst_zero_row.add(np.where(zero, off, -1.0), first_row)

    def finish(self, modelled: bool) -> tuple[dict[str, float], dict[str, tuple[int, ...]]]:
        """Return the metrics and where the maxima are."""
        values = {
            "elements": float(self.classes.sum()),
            "nonfinite_mismatches": float(mismatches(named(self.classes))),
        }
        if self.keyless_rows_not_zero is not None:
            values["keyless_rows_not_zero"] = float(self.keyless_rows_not_zero)
        if not self.count:
            return values, {}
        rmse, truth_rms = math.sqrt(self.error / self.count), math.sqrt(self.truth / self.count)
        values |= {
            "rmse": rmse,
            "truth_rms": truth_rms,
            "max_abs": self.error_max.value,
            "mean_error": self.mean.mean(),
            "ulp_max": self.ulp_max.value,
            "floor_rmse": math.sqrt(self.floor / self.count),
            "floor_max_abs": self.floor_max.value,
            **dict(zip(ULP_QUANTILES, self.quantiles.at(*ULP_QUANTILES.values()), strict=True)),
        }
        where = {
            "max_abs": self.shape.element(self.error_max.position),
            "ulp_max": self.shape.element(self.ulp_max.position),
        }
        if truth_rms or not rmse:
            values["relative_rmse"] = _ratio(rmse, truth_rms)
            values["gain_error"] = self.along / self.truth if self.truth else 0.0
        if self.mean_ulp.units:
            values["mean_ulp"] = self.mean_ulp.mean()
        for name, mean in (("mean_error", self.mean), ("mean_ulp", self.mean_ulp)):
            if (standard_error := mean.standard_error()) is not None:
                values[f"{name}_standard_error"] = standard_error
        if modelled:
            values["expected_rmse"] = math.sqrt(self.expected / self.count)
        if self.shape.has_rows:
            self._finish_rows(values, where, truth_rms)
        return values, where

    def _finish_rows(self, values: dict[str, float], where: dict[str, tuple[int, ...]], truth_rms: float) -> None:
        """Add the worst row; one whose truth is all zero has no scale of its own and takes the tensor's."""
        worst, row = self.worst_row.value, self.worst_row.position
        zero_row = _ratio(max(0.0, self.worst_zero_row.value), truth_rms * math.sqrt(self.shape.row))
        if self.worst_zero_row.position >= 0 and zero_row > worst:
            worst, row = zero_row, self.worst_zero_row.position
        if row >= 0 and math.isfinite(worst):
            values["worst_row_relative_l2"] = worst
            where["worst_row_relative_l2"] = self.shape.row_index(row)


def _ratio(part: float, whole: float) -> float:
    """Return part / whole with 0 / 0 = 0: no error is no error, relative to anything."""
    if not part:
        return 0.0
    return part / whole if whole else math.inf


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Return the values as they are; a NaN or an infinity among them is a fault of this room."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ArithmeticError(f"metric {name} is {value}; a metric is finite or absent")
    return values
