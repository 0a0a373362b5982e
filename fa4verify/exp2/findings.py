"""What a coefficient set does wrong, beyond how large its errors are.

Contract: each Finding is "fail" or "note". A set fails if a kernel that uses it gives wrong classes or orders of
weights inside the kernel's own range: masked scores that are not 0, infinite, NaN or negative weights up to tau, a
step down where octaves meet, a step down of more than one ulp inside one. What every set shares, because the recipe
has it (NaN gives 0, x >= 128 wraps, subnormals below -126), is noted: FA4's own sets pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from fa4verify.exp2.evaluate import evaluate, evaluate_bits
from fa4verify.exp2.measures import within
from fa4verify.exp2.sets import hex_float

if TYPE_CHECKING:
    import numpy.typing as npt

    from fa4verify.exp2.sets import CoefficientSet
    from fa4verify.exp2.statistics import Figures

F32 = np.float32
_LOOKED_AT = 256  # chunks with steps down that are evaluated again for the largest


@dataclass(frozen=True)
class Finding:
    """One hazard: `kind` for programs, `message` for people."""

    kind: str
    severity: Literal["fail", "note"]
    message: str


@dataclass(frozen=True)
class Special:
    """What one input that is no ordinary number gives, and what an exponential should."""

    x: str
    got: str
    got_bits: int
    wanted: str
    passed: bool


@dataclass(frozen=True)
class Seams:
    """Steps from the last result below to the first above each place where the reduction changes, in ulp (of bits)."""

    smallest: int
    smallest_at: float
    largest: int
    largest_at: float
    down: int


SPECIALS = (
    ("NaN", math.nan, "NaN"), ("-NaN", -math.nan, "NaN"), ("-inf", -math.inf, "0"), ("-3.4e38", -3.4e38, "0"),
    ("-128", -128.0, "0"), ("-127", -127.0, "0"), ("-0", -0.0, "near 1"), ("0", 0.0, "near 1"),
    ("-2^-149", -(2.0**-149), "near 1"), ("2^-149", 2.0**-149, "near 1"), ("128", 128.0, "inf"),
    ("128.5", 128.5, "inf"), ("129", 129.0, "inf"), ("256", 256.0, "inf"), ("3.4e38", 3.4e38, "inf"),
    ("inf", math.inf, "inf"),
)  # fmt: skip


def specials(chosen: CoefficientSet, ftz: bool) -> list[Special]:
    """Return what the special inputs give; a masked score may give anything in [0, 2^-126]."""
    x = np.array([value for _, value, _ in SPECIALS], F32)
    found = []
    for (name, _, wanted), y in zip(SPECIALS, _results(x, chosen, ftz), strict=True):
        value = float(y)
        right = {"NaN": math.isnan(value), "0": 0.0 <= value <= 2.0**-126, "inf": value == math.inf}
        passed = right.get(wanted, 0.5 < value < 2.0)
        found.append(Special(name, f"{value:.9g}", int(y.view(np.uint32)), wanted, passed))
    return found


def seams(chosen: CoefficientSet, ftz: bool) -> Seams:
    """Return the steps where the reduction changes: at integers, or for reduction to nearest beside the halves.

    From -125 on: below -126 results are subnormal.
    """
    if chosen.range_reduction == "floor":
        upper = np.arange(-125, 128, dtype=F32)
    else:  # a tie goes to the even integer: up to it from below, or only just after it
        halves = np.arange(-125, 127, dtype=F32) + F32(0.5)
        to_upper = np.arange(-125, 127) % 2 == 1
        upper = np.where(to_upper, halves, np.nextafter(halves, F32(np.inf)))
    lower = np.nextafter(upper, F32(-np.inf))
    above, below = (_results(x, chosen, ftz) for x in (upper, lower))
    down = ~(above >= below)
    steps = above.view(np.int32).astype(np.int64) - below.view(np.int32).astype(np.int64)
    low, high = int(steps.argmin()), int(steps.argmax())
    return Seams(int(steps[low]), float(upper[low]), int(steps[high]), float(upper[high]), int(down.sum()))


def steps_down_inside(figures: Figures, joints: Seams) -> int:
    """Return how many results from -126 on are below the one under them, other than at seams."""
    return int(figures.down[within(figures, -126, 128)].sum()) - joints.down


def largest_step_down(figures: Figures, chosen: CoefficientSet, ftz: bool) -> tuple[int, float]:
    """Return the largest step down in ulp, and its x, in the chunks that have most of them (0 if none has any)."""
    largest, where = 0, math.nan
    downs = np.where(within(figures, -126, 128), figures.down, 0)
    for c in np.argsort(-downs, kind="stable")[:_LOOKED_AT]:
        if not downs[c]:
            break
        first, count = int(figures.first[c]), int(figures.count[c])
        bits = np.arange(first, first + count, dtype=np.uint32)
        y = evaluate_bits(first, count, chosen.coefficients, chosen.range_reduction, ftz=ftz).view(np.int32)
        steps = np.diff(y.astype(np.int64)) * (-1 if first >= 0x80000000 else 1)
        x = bits.view(F32)[:-1] if first >= 0x80000000 else bits.view(F32)[1:]
        inner = x != np.floor(x) if chosen.range_reduction == "floor" else np.ones(x.size, bool)
        if inner.any() and -int(steps[inner].min()) > largest:
            largest = -int(steps[inner].min())
            where = float(x[inner][steps[inner].argmin()])
    return largest, where


def examine(
    chosen: CoefficientSet, figures: Figures, found: list[Special], joints: Seams, beyond: dict[str, int], tau: int,
    ftz: bool,
) -> list[Finding]:  # fmt: skip
    """Return the findings, failures first."""
    findings = [
        *_masked(chosen, found),
        *_classes(figures, tau),
        *_order(chosen, figures, joints, ftz),
        Finding(
            "wraps", "note",
            f"x >= 128 wraps around: {beyond['negative']} inputs give negative numbers, {beyond['nan']} NaN, "
            f"{beyond['finite']} other finite numbers, {beyond['infinite']} inf (MUFU: inf for each)",
        ),
    ]  # fmt: skip
    tail = within(figures, -127, -126)
    findings.append(
        Finding(
            "subnormal", "note",
            "-127 < x < -126 gives subnormals with relative errors from "
            f"{figures.low[tail].min():+.1%} to {figures.high[tail].max():+.1%} (MUFU: 0)",
        )
    )  # fmt: skip
    if not next(special for special in found if special.x == "NaN").passed:
        findings.append(Finding("nan_lost", "note", f"NaN gives {found[0].got}: the clamp drops it (MUFU: NaN)"))
    return sorted(findings, key=lambda finding: finding.severity)


def _masked(chosen: CoefficientSet, found: list[Special]) -> list[Finding]:
    masked = next(special for special in found if special.x == "-127")
    p0 = chosen.coefficients[0]
    if not masked.passed:
        why = f"p0 = {hex_float(p0)} < 1, a borrow from the exponent" if p0 < 1 else f"p0 = {hex_float(p0)}"
        return [
            Finding("masked", "fail", f"every masked score (x <= -127, -inf, NaN) gives {masked.got}, not 0: {why}")
        ]
    if masked.got_bits:
        return [
            Finding("masked", "note", f"every masked score (x <= -127) gives {masked.got}, not 0: p0 = {hex_float(p0)}")
        ]
    return []


def _classes(figures: Figures, tau: int) -> list[Finding]:
    findings = []
    inside, beyond = within(figures, -126, tau), within(figures, tau, 128)
    bad = int(figures.nonfinite[inside].sum())
    if bad:
        findings.append(Finding("nonfinite", "fail", f"{bad} inputs in [-126, {tau}) give inf or NaN"))
    if figures.low[inside].min() <= -1.0:
        findings.append(Finding("sign", "fail", f"results in [-126, {tau}) are zero or negative"))
    later = int(figures.nonfinite[beyond].sum())
    if later:
        findings.append(Finding("nonfinite_above", "note", f"{later} inputs in [{tau}, 128) give inf or NaN"))
    return findings


def _order(chosen: CoefficientSet, figures: Figures, joints: Seams, ftz: bool) -> list[Finding]:
    findings = []
    where = "integers" if chosen.range_reduction == "floor" else "half integers"
    top = sum((Fraction(value) for value in chosen.coefficients), Fraction(0))
    if chosen.range_reduction == "floor" and top > 2:
        text = f"p(1) = {float(top):.9g} > 2: the result falls by {float(top / 2 - 1):.3g} at octave edges"
        findings.append(Finding("p1_above_2", "fail", text))
    if joints.down:
        text = f"{joints.down} steps down at {where}, the largest {-joints.smallest} ulp at x = {joints.smallest_at!r}"
        findings.append(Finding("step_down_at_edges", "fail", text))
    inner = steps_down_inside(figures, joints)
    if inner > 0:
        largest, x = largest_step_down(figures, chosen, ftz)
        text = f"{inner} steps down inside octaves, the largest found {largest} ulp at x = {x!r} ({x.hex()})"
        findings.append(Finding("step_down_inside", "fail" if largest > 1 else "note", text))
    if joints.largest > 1:
        text = f"the result jumps up by as much as {joints.largest} ulp at {where} (x = {joints.largest_at!r})"
        findings.append(Finding("jump", "note", text))
    return findings


def _results(x: npt.NDArray[np.float32], chosen: CoefficientSet, ftz: bool) -> npt.NDArray[np.float32]:
    return evaluate(x, chosen.coefficients, chosen.range_reduction, ftz=ftz)
