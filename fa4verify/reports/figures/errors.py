"""How large errors are and how they are distributed: exceedance, ulp histogram, error over the length.

Contract: every case of a line counts the same, however many elements it has; errors are over the case's own truth_rms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fa4verify.reports.figures.canvas import GREY, Figure, draw, finish, legend_above, levels, log_axis, series
from fa4verify.reports.figures.pick import grouped, label, left_out, mean, measured, most, shown
from fa4verify.reports.measures import metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fa4verify.vocabulary import Metrics, Record

PANELS = {"forward": ("o", "lse"), "backward": ("dq", "dk", "dv")}
NAMES = {"o": "O", "lse": "LSE", "dq": "dQ", "dk": "dK", "dv": "dV", "y": "exp2"}
SMALLEST_SHARE = 1e-6
HALF_OCTAVES = np.arange(-80, 9) / 2.0  # log2 of the errors at which shares are read
LENGTHS = 3  # different lengths from which a curve is a curve


def exceedance(records: Sequence[Record], operation: str, dtype: str) -> Figure | None:
    """Share of elements with a larger error: each kernel, and a correctly rounded output."""
    records = [record for record in records if record.case.operation == operation and record.case.dtype == dtype]
    kernels, omitted = most(grouped(records, lambda record: label(record.case)))
    tensors = [name for name in PANELS[operation] if any(measured(record, name) for record in records)]
    if not tensors:
        return None
    with draw(1, len(tensors), 2.8, sharey=True) as (canvas, panels):
        drawn = False
        for tensor, axes in zip(tensors, panels, strict=True):
            floors = []
            for index, (name, group) in enumerate(kernels.items()):
                found = [item for item in (measured(record, tensor) for record in group) if item is not None]
                if curve := _mean_curve(found, floor=False):
                    axes.plot(*curve, **series(index, marker=False), label=shown(name))
                    drawn = True
                floors += found
            if curve := _mean_curve(floors, floor=True):
                axes.plot(*curve, color=GREY, linewidth=2.6, alpha=0.55, label="correctly rounded", zorder=1)
            log_axis(axes, "x", ticks=9 - 2 * len(tensors))
            log_axis(axes, "y")
            axes.set_ylim(SMALLEST_SHARE, 1.5)
            axes.set_xlabel(f"|error of {NAMES[tensor]}| / RMS of {NAMES[tensor]}")
        if not drawn:
            return None
        panels[0].set_ylabel("share of elements beyond")
        top = legend_above(canvas, panels)
        canvas.subplots_adjust(left=0.1, right=0.99, top=top, bottom=0.17, wspace=0.08)
        svg = finish(canvas, f"exceedance-{operation}-{dtype}")
    caption = (
        "How to read: at 1e-3 on the left axis, one element in a thousand has a larger error. The grey band is the "
        "output rounded once from the truth: no kernel can be below it for long. A line that turns flat to the right "
        "has outliers. Half-octave steps; every case counts the same." + left_out(omitted)
    )
    return Figure(
        f"exceedance-{operation}-{dtype}", f"Errors of the {operation} in {dtype}, how many of which size", caption, svg
    )


def _mean_curve(found: Sequence[Metrics], *, floor: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return error sizes and the mean share of elements beyond them."""
    shares = [share for share in (_beyond(item, floor=floor) for item in found) if share is not None]
    if not shares:
        return None
    share = np.mean(shares, axis=0)
    last = int(np.flatnonzero(share > 0)[-1]) + 1 if (share > 0).any() else 0
    first = max(0, int(np.flatnonzero(share >= 0.97 * share[0])[-1]) - 4)
    keep = slice(first, min(last + 1, share.size))
    return 2.0 ** HALF_OCTAVES[keep], np.maximum(share[keep], SMALLEST_SHARE / 10)


def _beyond(found: Metrics, *, floor: bool) -> NDArray[np.float64] | None:
    """Return the share of elements with an error above each of HALF_OCTAVES, relative to the truth's RMS."""
    profile, rms = found.profile, found.values.get("truth_rms")
    if profile is None or not rms:
        return None
    counts, first = (profile.floors, profile.floors_from) if floor else (profile.errors, profile.errors_from)
    total = sum(counts) + (profile.floor_exact if floor else profile.exact)
    if not total or not counts:
        return np.zeros(HALF_OCTAVES.size) if total else None
    codes = np.arange(first, first + len(counts) + 1)
    edges = codes // 2 + np.where(codes % 2, math.log2(1.5), 0.0) - math.log2(rms)
    below = np.concatenate([[0], np.cumsum(counts)]) + (total - sum(counts))
    reached: NDArray[np.float64] = 1.0 - np.interp(HALF_OCTAVES, edges, below / total, left=1 - sum(counts) / total)
    return np.maximum(reached, 0.0)


def ulps(records: Sequence[Record]) -> Figure | None:
    """Signed error in ulp of the output format."""
    records = [record for record in records if any(_ulps(record))]
    kernels, omitted = most(grouped(records, lambda record: label(record.case)))
    dtypes = [name for name in ("bf16", "fp16") if any(record.case.dtype == name for record in records)]
    if not dtypes:
        return None
    with draw(1, len(dtypes), 2.7, sharey=True) as (canvas, panels):
        for dtype, axes in zip(dtypes, panels, strict=True):
            for index, (name, group) in enumerate(kernels.items()):
                counts = [np.array(_ulps(record)) for record in group if record.case.dtype == dtype]
                shares = [count / count.sum() for count in counts]
                if shares:
                    centres = (np.arange(shares[0].size) - shares[0].size // 2) / 4
                    axes.step(
                        centres, np.mean(shares, axis=0), where="mid", **series(index, marker=False), label=shown(name)
                    )
            log_axis(axes, "y")
            axes.set_ylim(1e-5, 1.2)
            axes.set_xticks([-4, -2, -0.5, 0.5, 2, 4], ["-4", "-2", "-1/2", "1/2", "2", "4"])
            axes.set_xlabel(f"error of O in ulp ({dtype})")
        panels[0].set_ylabel("share of elements")
        top = legend_above(canvas, panels)
        canvas.subplots_adjust(left=0.1, right=0.99, top=top, bottom=0.17, wspace=0.08)
        svg = finish(canvas, "ulps")
    caption = (
        "How to read: a rounding to nearest is symmetric about 0 and falls off beyond a half; a truncation leans to "
        "one side. The outermost bins hold everything beyond 4: elements where O cancels to nearly 0, whose ulp is "
        "tiny. Bins of a quarter ulp; every case counts the same." + left_out(omitted)
    )
    return Figure("ulps", "Errors of O in units of the last place, signed", caption, svg)


def _ulps(record: Record) -> tuple[int, ...]:
    found = measured(record, "o")
    return found.profile.ulps if found is not None and found.profile is not None else ()


def lengths(records: Sequence[Record]) -> Figure | None:
    """RMSE of O against the number of keys."""
    records = [record for record in records if metric(record, "o", "relative_rmse")]
    groups = grouped(records, lambda record: (label(record.case), record.case.dtype, record.case.distribution.name))
    curves = {
        name: group for name, group in groups.items() if len({item.case.shape.seqlen_k for item in group}) >= LENGTHS
    }
    curves, omitted = most(curves)
    if not curves:
        return None
    keys = sorted(
        {record.case.shape.seqlen_k for group in curves.values() for record in group if record.case.shape.seqlen_k}
    )
    with draw(1, 1, 2.7) as (canvas, (axes,)):
        for index, (name, group) in enumerate(curves.items()):
            for kind in ("rmse", "floor_rmse"):
                by_length = grouped(group, lambda record: record.case.shape.seqlen_k)
                points = sorted(
                    (length, value)
                    for length, found in by_length.items()
                    if length and (value := mean(_relative(record, kind) for record in found))
                )
                style = (
                    series(index)
                    if kind == "rmse"
                    else {**series(index, marker=False), "alpha": 0.45, "linewidth": 0.9}
                )
                axes.plot(
                    *zip(*points, strict=True),
                    **style,
                    label=" ".join((shown(name[0]), *name[1:])) if kind == "rmse" else None,
                )
        log_axis(axes, "y")
        octaves = [float(2**power) for power in range(21) if keys[0] <= 2**power <= keys[-1]]
        levels(axes, "x", octaves or [float(keys[0])], base=2)
        axes.set_xlabel("keys")
        axes.set_ylabel("RMSE of O / RMS of O")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7)
        canvas.subplots_adjust(left=0.1, right=0.62, top=0.97, bottom=0.17)
        svg = finish(canvas, "lengths")
    caption = (
        "How to read: the pale line of the same colour is a correctly rounded output. A kernel's error should rise no "
        "faster than that line: roundings of P average out over keys. Points of one length (seeds, masks, heads) are "
        "their mean." + left_out(omitted, "curve")
    )
    return Figure("lengths", "Error of O against the number of keys", caption, svg)


def _relative(record: Record, kind: str) -> float | None:
    value, scale = metric(record, "o", kind), metric(record, "o", "truth_rms")
    return value / scale if value and scale else None
