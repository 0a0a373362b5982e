"""Two studies as curves: what a rescale threshold costs, and what an order of adds moves.

Contract: points of one line that differ only in the seed are their mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa4verify.reports.figures.canvas import Figure, clean, draw, finish, legend_above, levels, log_axis, series
from fa4verify.reports.figures.errors import NAMES
from fa4verify.reports.figures.pick import grouped, label, left_out, mean, most, shown
from fa4verify.reports.measures import activity, metric
from fa4verify.reports.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fa4verify.vocabulary import Record

THRESHOLD = "rescale_threshold"
PANELS = 4
ADDS = {"dq": "dq_adds_max", "dk": "dkv_adds", "dv": "dkv_adds"}


def rescale(records: Sequence[Record]) -> Figure | None:
    """RMSE of O over that of tau = 0, and the share of rescales skipped, against tau, for each distribution."""
    records = [record for record in records if THRESHOLD in record.case.options and metric(record, "o", "rmse")]
    panels = grouped(records, lambda record: (label(record.case, without=[THRESHOLD]), record.case.dtype))
    panels = {
        name: group for name, group in panels.items() if {0} < {record.case.options[THRESHOLD] for record in group}
    }
    panels, omitted = most(panels, PANELS)
    if not panels:
        return None
    drawn = list(dict.fromkeys(_inputs(record) for group in panels.values() for record in group))
    with draw(2, len(panels), 3.6, sharex=True, sharey="row") as (canvas, axes):
        for column, ((kernel, dtype), group) in enumerate(panels.items()):
            errors, skips = axes[column], axes[column + len(panels)]
            for name, points in grouped(group, _inputs).items():
                style = series(drawn.index(name))
                by_tau = dict(sorted(grouped(points, lambda record: record.case.options[THRESHOLD]).items()))
                base = mean(metric(record, "o", "rmse") for record in by_tau.get(0, []))
                rmse = {tau: mean(metric(record, "o", "rmse") for record in found) for tau, found in by_tau.items()}
                skip = {
                    tau: mean(activity(record, "rescales_skipped") for record in found) for tau, found in by_tau.items()
                }
                if base:
                    errors.plot(
                        list(rmse), [(value or 0.0) / base for value in rmse.values()], **style, label=clean(name)
                    )
                known = {tau: value for tau, value in skip.items() if value is not None}
                skips.plot(list(known), [100 * value for value in known.values()], **style)
            errors.set_title(f"{dtype}{' ' + extra if (extra := kernel.partition(' ')[2]) else ''}", fontsize=8)
            levels(errors, "y", [1, 2, 5, 10], base=10)
            skips.set_xlabel("threshold tau (log2 units)")
        axes[0].set_ylabel("RMSE of O, over tau = 0")
        axes[len(panels)].set_ylabel("rescales skipped (%)")
        top = legend_above(canvas, list(axes), columns=4) - 0.05
        canvas.subplots_adjust(left=0.1, right=0.99, top=top, bottom=0.13, wspace=0.08, hspace=0.12)
        svg = finish(canvas, "rescale")
    kernels = ", ".join(dict.fromkeys(one_line(kernel)[:80].partition(" ")[0] for kernel, _ in panels))
    caption = (
        f"{kernels}. How to read: FA4 takes tau = 8. Inputs that skip every rescale from a small tau on (below, 100 %) "
        "cannot say what a larger one costs; the others show P that is no longer exactly 1 where one key dominates."
        + left_out(omitted, "panel")
    )
    return Figure("rescale", "What the rescale threshold costs", caption, svg)


def _inputs(record: Record) -> str:
    distribution = record.case.distribution
    arguments = ", ".join(f"{name}={value}" for name, value in distribution.arguments.items())
    return f"{distribution.name}({arguments})" if arguments else distribution.name


def determinism(records: Sequence[Record]) -> Figure | None:
    """Share of elements whose bits change from run to run, against the number of adds."""
    points: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record.case.operation != "repeat" or record.case.deterministic:
            continue
        for tensor, counter in ADDS.items():
            adds, share = activity(record, counter), metric(record, tensor, "differing_share")
            if adds is not None and share is not None and adds > 1:
                stored = "fp32" if record.case.options.get("grad_dtype") == "fp32" else record.case.dtype
                name = f"{NAMES[tensor]}, {stored}, {shown(label(record.case, without=['grad_dtype']))}"
                points.setdefault(name, []).append((adds, share))
    curves = {
        name: found
        for name, found in points.items()
        if any(share for _, share in found) and len({adds for adds, _ in found}) > 1
    }
    kept = sorted(curves, key=lambda name: -len(curves[name]))[:8]
    if not kept:
        return None
    with draw(1, 1, 2.9) as (canvas, (axes,)):
        for index, name in enumerate(kept):
            by_adds: dict[float, list[float]] = {}
            for adds, share in curves[name]:
                by_adds.setdefault(adds, []).append(share)
            line = sorted((adds, sum(shares) / len(shares)) for adds, shares in by_adds.items())
            axes.plot([adds for adds, _ in line], [max(share, 1e-8) for _, share in line], **series(index), label=name)
        log_axis(axes, "x", base=2)
        log_axis(axes, "y")
        axes.set_xlabel("partial sums that meet in one element (KV tiles for dQ)")
        axes.set_ylabel("share of elements that differ")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7)
        canvas.subplots_adjust(left=0.1, right=0.58, top=0.97, bottom=0.16)
        svg = finish(canvas, "determinism")
    caption = (
        "How to read: without `deterministic`, the order in which tiles add to one element changes from run to run. "
        "Two addends commute, so that nothing differs below three. fp32: the accumulators before they are stored in 16 "
        "bits, which hides most of it." + left_out(len(curves) - len(kept), "curve")
    )
    return Figure("determinism", "Bits that change from run to run", caption, svg)
