"""What a report shows of a Record: named figures for each operation, and how each is written.

Contract: a figure that was not measured is None, never 0; a ratio to a perfect score is inf, or None where both are
perfect. An activity counter that is a part of something is shown as its share of the whole (WHOLES).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa4verify.reports.text import NONE, digits, percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from fa4verify.vocabulary import Record

Value = float | bool | None

# The counters whose sum a counter is a share of.
WHOLES = {
    "rescales_done": ("rescales_done", "rescales_skipped"),
    "rescales_skipped": ("rescales_done", "rescales_skipped"),
    "emulated_exp2": ("emulated_exp2", "hardware_exp2"),
    "hardware_exp2": ("emulated_exp2", "hardware_exp2"),
    "tiles_masked": ("tiles_visited",),
    "p_saturated": ("emulated_exp2", "hardware_exp2"),
}


def metric(record: Record, tensor: str, name: str) -> float | None:
    """Return a metric of a tensor, if it was measured."""
    measured = record.metrics.get(tensor)
    return None if measured is None else measured.values.get(name)


def ratio(value: float | None, base: float | None) -> float | None:
    """Divide two errors; a perfect base makes any error infinitely worse."""
    if value is None or base is None:
        return None
    if base == 0:
        return math.inf if value else None
    return value / base


def activity(record: Record, counter: str) -> float | None:
    """Return a counter, as a share where it is a part of a whole."""
    count = record.activity.get(counter)
    if count is None or not is_share(counter):
        return count
    if counter == "rows_dominant_not_one":
        shape = record.case.shape
        whole: float = shape.batch * shape.heads * shape.seqlen_q
    else:
        whole = sum(record.activity.get(part, 0) for part in WHOLES[counter])
    return count / whole if whole else None


def is_share(counter: str) -> bool:
    """Whether `activity` gives a share of one."""
    return counter in WHOLES or counter == "rows_dominant_not_one"


def fa_rule(record: Record) -> bool | None:
    """Whether FlashAttention's own rule passes O; None where it was not computed.

    Where the judge gave its decision it counts (a NaN on one side has no number to compare); else value <= limit.
    """
    decided = metric(record, "o", "fa_rule_passes")
    if decided is not None:
        return decided != 0
    value, limit = metric(record, "o", "fa_rule_value"), metric(record, "o", "fa_rule_limit")
    return None if value is None or limit is None else value <= limit


@dataclass(frozen=True)
class Measure:
    """A column of a verdict table."""

    title: str
    of: Callable[[Record], Value]
    show: Callable[[Value], str]


def _of(tensor: str, name: str) -> Callable[[Record], Value]:
    return lambda record: metric(record, tensor, name)


def _to_floor(tensor: str) -> Callable[[Record], Value]:
    return lambda record: ratio(metric(record, tensor, "rmse"), metric(record, tensor, "floor_rmse"))


def _worst_row(record: Record) -> Value:
    """Return the worst row's relative error of the three gradients."""
    found = [metric(record, tensor, "worst_row_relative_l2") for tensor in ("dq", "dk", "dv")]
    return max((value for value in found if value is not None), default=None)


def _to_baseline(record: Record) -> Value:
    baseline = record.baseline.get("o")
    return ratio(metric(record, "o", "rmse"), None if baseline is None else baseline.values.get("rmse"))


def _passed(value: Value) -> str:
    return NONE if value is None else "pass" if value else "fail"


MEASURES: dict[str, tuple[Measure, ...]] = {
    "forward": (
        Measure("O rmse", _of("o", "rmse"), digits),
        Measure("/floor", _to_floor("o"), digits),
        Measure("/base", _to_baseline, digits),
        Measure("max ulp", _of("o", "ulp_max"), digits),
        Measure("LSE max", _of("lse", "max_abs"), digits),
        Measure("FA rule", fa_rule, _passed),
        Measure("skip", lambda record: activity(record, "rescales_skipped"), percent),
        Measure("emu", lambda record: activity(record, "emulated_exp2"), percent),
    ),
    "exp2": (
        Measure("max rel", _of("y", "max_relative"), digits),
        Measure("rmse rel", _of("y", "rmse_relative"), digits),
        Measure("mean rel", _of("y", "mean_relative"), digits),
        Measure("max ulp", _of("y", "ulp_max"), digits),
        Measure("bf16 diff", _of("y", "bf16_mismatch_rate"), percent),
        Measure("fp16 diff", _of("y", "fp16_mismatch_rate"), percent),
    ),
    "backward": (
        *(
            column
            for tensor, name in (("dq", "dQ"), ("dk", "dK"), ("dv", "dV"))
            for column in (
                Measure(f"{name} rmse", _of(tensor, "rmse"), digits),
                Measure("/floor", _to_floor(tensor), digits),
            )
        ),
        Measure("worst row", _worst_row, digits),
        Measure("delta max", _of("delta", "max_abs"), digits),
        Measure("dsink max", _of("dsink", "max_abs"), digits),
    ),
    "repeat": (
        Measure("runs", _of("dq", "runs"), digits),
        *(
            Measure(f"{name} bits", _of(tensor, "distinct"), digits)
            for tensor, name in (("o", "O"), ("dq", "dQ"), ("dk", "dK"), ("dv", "dV"))
        ),
        Measure("shuffled", _of("dq", "distinct_shuffled"), digits),
        Measure("dQ differ", _of("dq", "differing_share"), percent),
        Measure("dQ max diff", _of("dq", "max_difference"), digits),
        Measure("rate <", _of("dq", "rate_bound"), percent),
    ),
    "audit": (),
}

LEGEND = (
    "/floor and /base: RMSE of O over that of a correctly rounded O and of the baseline kernel. "
    "FA rule: FlashAttention's own test, max|O - ref| <= 2 max|pt - ref| + 2 max|rounding of ref|. "
    "skip: share of rescales skipped. emu: share of exponentials emulated."
)

REPEAT_LEGEND = (
    "bits: bit patterns of the tensor in all runs; shuffled: of dQ in random orders of the adds. dQ differ: share of "
    "elements that differ from the first run's, the mean over the others. rate <: how often a run leaves the commonest "
    "bits of dQ, at most, at 95 %."
)
