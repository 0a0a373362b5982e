"""The exhaustive check of a coefficient set: all 2^32 inputs, every figure, and what a fit can hide.

Contract: `check` evaluates each float32 bit pattern in the device arithmetic; the figures of `statistics` for
-127 <= x < 128 (see its docstring for their own errors), the class of the result for every other pattern. Nothing is
sampled, so the report is the same on every machine and for any number of threads.
Known limit: the maximum of a range is over every input in it, its mean and RMSE are under the stated measure alone.
Numbers to compare with: docs/arithmetic.md, exp2.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.exp2 import measures
from fa4verify.exp2.evaluate import evaluate_bits
from fa4verify.exp2.findings import Finding, Seams, Special, examine, seams, specials, steps_down_inside
from fa4verify.exp2.passes import tally_range
from fa4verify.exp2.statistics import EDGES, collect, everything, fractions, processors

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from fa4verify.exp2.measures import Summary
    from fa4verify.exp2.sets import CoefficientSet
    from fa4verify.exp2.statistics import Figures

INPUTS = 2**32
TAU = 8  # FA4's rescale threshold for 16-bit inputs: x reaches it
_BELOW_FIRST = 0xC2FE0001  # the bits after those of -127: smaller x, -inf and the NaN with a sign
_ABOVE_FIRST, _ABOVE_END = 0x43000000, 0x80000000  # from 128 on: larger x, inf and the NaN without
_SHARE = 2**26  # patterns a thread takes at once outside the range of the figures


@dataclass(frozen=True)
class Bin:
    """Share (under x uniform) and number of inputs whose error in ulp is in [low, high)."""

    low: float
    high: float
    inputs: int
    share: float


@dataclass(frozen=True)
class Report:
    """Everything that `exp2 check` says of a set."""

    chosen: CoefficientSet
    form: str
    tau: int
    inputs: int
    seconds: float
    summaries: tuple[Summary, ...]
    histogram: tuple[Bin, ...]
    seams: Seams
    steps_down_inside: int
    specials: tuple[Special, ...]
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """Whether a finding fails the set."""
        return any(finding.severity == "fail" for finding in self.findings)

    @property
    def first_failing_special(self) -> Special | None:
        """The first special input whose result has the wrong class, in the order of `findings.SPECIALS`."""
        return next((special for special in self.specials if not special.passed), None)


def check(
    chosen: CoefficientSet,
    *,
    ftz: bool = False,
    tau: int = TAU,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Evaluate the set on every float32 and report.

    Parameters
    ----------
    chosen
        The set, with its range reduction.
    ftz
        FA4's scalar form (add.rm.ftz) instead of the packed one.
    tau
        Upper end of the working range, a whole number from 1 to 127.
    threads
        By default one for each processor that the process may use.
    progress
        Called with the number of inputs done since the last call, from any thread; `INPUTS` in all.
    """
    if not 1 <= tau <= 127:
        raise ValueError(f"tau = {tau}: expected 1 to 127")
    began = time.perf_counter()
    figures = collect(everything(-127, 128), chosen, ftz=ftz, threads=threads, progress=progress)
    once = collect(fractions(), chosen, ftz=ftz, threads=threads)
    differing, above = _outside(chosen, ftz, threads or processors(), progress)
    found, joints = specials(chosen, ftz), seams(chosen, ftz)
    findings = examine(chosen, figures, found, joints, above, tau, ftz)
    if differing:  # every x <= -127 is clamped to -127; the recipe leaves no way out
        raise AssertionError(f"{differing} inputs below -127 differ from the result at -127")
    progress(1)  # negative zero, which is among the specials
    return Report(
        chosen=chosen,
        form="scalar (add.rm.ftz)" if ftz else "packed",
        tau=tau,
        inputs=INPUTS,
        seconds=time.perf_counter() - began,
        summaries=tuple(_summaries(chosen, figures, once, tau, ftz)),
        histogram=tuple(_histogram(figures, tau)),
        seams=joints,
        steps_down_inside=steps_down_inside(figures, joints),
        specials=tuple(found),
        findings=tuple(findings),
    )


def _outside(
    chosen: CoefficientSet, ftz: bool, threads: int, progress: Callable[[int], None]
) -> tuple[int, dict[str, int]]:
    """Return how many results below -127 differ from that at -127, and how many from 128 on are of each class."""
    nearest = chosen.range_reduction == "nearest"
    masked = int(
        evaluate_bits(_BELOW_FIRST - 1, 1, chosen.coefficients, chosen.range_reduction, ftz=ftz).view(np.uint32)[0]
    )
    same = np.array([masked, max(masked - 1, 0), 0, 0], np.uint32)
    classes = np.array([0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF, 0xFF800000], np.uint32)
    ranges = [(start, min(_SHARE, 2**32 - start), same) for start in range(_BELOW_FIRST, 2**32, _SHARE)]
    ranges += [(start, min(_SHARE, _ABOVE_END - start), classes) for start in range(_ABOVE_FIRST, _ABOVE_END, _SHARE)]

    def take(first: int, count: int, limits: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        counts = np.zeros(4, np.int64)
        tally_range(first, count, chosen.float32, nearest, ftz, limits, counts)
        progress(count)
        return counts

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(lambda each: take(*each), ranges))
    low, high = (
        np.sum([counts for counts, (_, _, used) in zip(results, ranges, strict=True) if used is limits], axis=0)
        for limits in (same, classes)
    )
    equal = low[1] - low[0] if masked else 2**32 - _BELOW_FIRST - low[0]
    from_inf, above_inf, signed, signed_nan = (int(count) for count in high)
    return 2**32 - _BELOW_FIRST - int(equal), {
        "finite": _ABOVE_END - _ABOVE_FIRST - from_inf,
        "infinite": from_inf - above_inf,
        "nan": above_inf - signed + signed_nan,
        "negative": signed - signed_nan,
    }


def _summaries(chosen: CoefficientSet, figures: Figures, once: Figures, tau: int, ftz: bool) -> list[Summary]:
    length, drawn = measures.uniform(figures), measures.attention(figures)
    ranges = [("[0, 1)", 0, 1), (f"[-127, {tau})", -127, tau), (f"[-126, {tau})", -126, tau), ("[-126, 0)", -126, 0)]
    rows = [(name, "x", figures, measures.within(figures, low, high), length) for name, low, high in ranges]
    rows.append(("-k/2^24", "f", once, np.ones(once.first.size, bool), once.count.astype(np.float64)))
    rows.append(("[-126, 0)", "attention", figures, measures.within(figures, -126, 0), drawn))
    return [
        measures.summarise(name, measure, source, some, mass, *_worst(source, some, chosen, ftz))
        for name, measure, source, some, mass in rows
    ]


def _worst(figures: Figures, some: npt.NDArray[np.bool_], chosen: CoefficientSet, ftz: bool) -> tuple[int, float]:
    """Return the bits of the x with the largest relative error, and that error; of equals the first in bits."""
    low, high = np.where(some, figures.low, np.inf), np.where(some, figures.high, -np.inf)
    c = int(np.argmax(np.maximum(-low, high)))
    error = float(high[c] if high[c] >= -low[c] else low[c])
    first, count, stride = int(figures.first[c]), int(figures.count[c]), int(figures.stride[c])
    y = evaluate_bits(first, count, chosen.coefficients, chosen.range_reduction, stride=stride, ftz=ftz)
    bits = (first + stride * np.arange(count)).astype(np.uint32)
    with np.errstate(all="ignore"):
        errors = y.astype(np.float64) * np.exp2(-bits.view(np.float32).astype(np.float64)) - 1.0
    return int(bits[int(np.nanargmin(np.abs(errors - error)))]), error


def _histogram(figures: Figures, tau: int) -> list[Bin]:
    some = measures.within(figures, -126, tau)
    length = measures.uniform(figures)[some]
    inputs = figures.histogram[some].sum(axis=0, dtype=np.int64)
    shares = (length / figures.count[some]) @ figures.histogram[some] / length.sum()
    bounds = [-np.inf, *EDGES.tolist(), np.inf]
    return [Bin(bounds[k], bounds[k + 1], int(inputs[k]), float(shares[k])) for k in range(len(inputs)) if inputs[k]]
