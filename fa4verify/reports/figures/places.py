"""Where errors sit: over one octave of exp2, over the columns of a tile, over the rows of a tensor.

Contract: drawn from `Metrics.profile` alone; of several records of a line the worst counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from fa4verify.reports.figures.canvas import GREY, STEPS, Figure, draw, finish, legend_above, log_axis, series
from fa4verify.reports.figures.errors import NAMES
from fa4verify.reports.figures.pick import from_sixteenths, grouped, label, left_out, measured, most, shown
from fa4verify.reports.text import digits, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from fa4verify.vocabulary import Record

TILE = 128
# Half an ulp relative to the smallest number of a binade; what is far below vanishes once P is rounded.
HALF_ULP = {"bf16": 2.0**-8, "fp16": 2.0**-11}
_PERFECT_ROW = -16 * 60
FEW = 32  # parts of an octave, of 128, that make no curve
PERFECT = 2.0**-40  # stands at the bottom for what is exactly right


def octave(records: Sequence[Record]) -> Figure | None:
    """Largest relative error of exp2 over one octave, each degree and MUFU."""
    groups = grouped(
        (record for record in records if record.case.operation == "exp2"), lambda record: label(record.case)
    )
    groups = {name: group for name, group in groups.items() if len(_points([_octave(item) for item in group])[0]) > FEW}
    groups, omitted = most(groups, 7)
    if not groups:
        return None
    with draw(1, 1, 2.9) as (canvas, (axes,)):
        largest = 0.0
        for index, (name, group) in enumerate(groups.items()):
            x, y = _points([_octave(record) for record in group])
            largest = max(largest, *y)
            axes.plot([(part + 0.5) / TILE for part in x], y, **series(index, marker=False), label=shown(name))
        for name, value in HALF_ULP.items():
            axes.axhline(value, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
            axes.text(1.02, value, f"half an ulp of {name}", va="center", fontsize=8)
        log_axis(axes, "y")
        axes.set_ylim(top=max(2 * largest, HALF_ULP["bf16"] * 4))
        axes.set_xlim(0, 1)
        axes.set_xlabel("fraction of x")
        axes.set_ylabel("largest |relative error| of 2^x")
        axes.legend(loc="lower left", bbox_to_anchor=(1.0, 0.0))
        canvas.subplots_adjust(left=0.11, right=0.68, top=0.97, bottom=0.16)
        svg = finish(canvas, "octave")
    caption = (
        "How to read: P is rounded to 16 bits after the exponential, to within the dashed lines. What is far below "
        "them cannot be seen in P; it can in LSE, which takes P before that rounding. Largest of each of 128 parts "
        "of the octave, over all exponents that were tried." + left_out(omitted)
    )
    return Figure("octave", "Error of exp2 over one octave", caption, svg)


def _octave(record: Record) -> tuple[int | None, ...]:
    found = measured(record, "y")
    return found.profile.octave if found is not None and found.profile is not None else ()


def columns(records: Sequence[Record]) -> Figure | None:
    """Largest error of LSE by the column, in its tile, of the key that decides the row."""
    records = [record for record in records if _in_tile(record) and not record.case.softcap]
    groups, omitted = most(grouped(records, lambda record: label(record.case)), 3)  # 128 marks each
    if not groups:
        return None
    with draw(1, 1, 2.5) as (canvas, (axes,)):
        for index, (name, group) in enumerate(groups.items()):
            lines = [_in_tile(record) for record in group]
            x, y = _points([line for line in lines if None not in line] or lines)
            axes.plot(
                x,
                [max(value, 1e-9) for value in y],
                **{**series(index), "linestyle": "none", "markersize": 2.8},
                label=shown(name),
            )
        log_axis(axes, "y")
        axes.set_xlim(-1.5, TILE + 0.5)
        axes.set_xticks(range(0, TILE + 1, 16))
        axes.set_xlabel("column of the deciding key in its tile of 128")
        axes.set_ylabel("largest |error of LSE|")
        top = legend_above(canvas, [axes])
        canvas.subplots_adjust(left=0.1, right=0.97, top=top, bottom=0.18)
        svg = finish(canvas, "columns")
    caption = (
        "How to read: rows in which one key has more than half of the weight and |LSE| is below 32, by the column of "
        "that key. LSE of such a row is that key's score, so the error of its exponential shows: columns whose "
        "exponential is emulated by the polynomial stand out at 8.8e-5, those of MUFU lie a hundred times lower. "
        "Points at 1e-9 are exact. Where cases try all columns, only they are drawn; softcap is left out: its tanh is "
        "further off." + left_out(omitted)
    )
    return Figure("columns", "Error of LSE by column of the tile", caption, svg)


def _in_tile(record: Record) -> tuple[int | None, ...]:
    found = measured(record, "lse")
    return found.profile.in_tile if found is not None and found.profile is not None else ()


def _points(lines: Sequence[tuple[int | None, ...]]) -> tuple[list[int], list[float]]:
    """Return the places at which any line has a number, and the largest there."""
    x, y = [], []
    for place, numbers in enumerate(zip(*(line for line in lines if line), strict=True)):
        there = [number for number in numbers if number is not None]
        if there:
            x.append(place)
            y.append(max(from_sixteenths(max(there)) or 0.0, PERFECT))
    return x, y


def rows(record: Record, tensor: str) -> Figure | None:
    """Map of the worst row's relative error, heads down and tokens across, of one record."""
    found = measured(record, tensor)
    if found is None or found.profile is None or not found.profile.rows:
        return None
    map_, shape = found.profile.rows, record.case.shape
    tokens = shape.seqlen_k if tensor in ("dk", "dv") else shape.seqlen_q
    heads = shape.batch * (shape.heads_kv if tensor in ("dk", "dv") else shape.heads)
    there = [number for line in map_ for number in line if number is not None]
    if not there or max(there) <= _PERFECT_ROW:
        return None
    # Steps of the map span what occurs, half an octave each at least, two at most; all that is tinier is the first.
    top = max(there) / 16
    span = max(4.0, min(top - min(there) / 16, 16.0))
    edges = [top - span + span * step / len(STEPS) for step in range(len(STEPS))]
    lines, blocks = len(map_), len(map_[0])
    name = f"rows-{tensor}"
    with draw(1, 1, 0.95 + 0.17 * max(3, lines)) as (canvas, (axes,)):
        axes.grid(visible=False)
        cells: list[list[tuple[int, int]]] = [[] for _ in STEPS]
        for line, numbers in enumerate(map_):
            for block, number in enumerate(numbers):
                if number is not None:
                    step = sum(number / 16 >= edge for edge in edges[1:])
                    cells[step].append((block, line))
        for step, places in enumerate(cells):
            _fill(axes, places, STEPS[step])
        axes.set_xlim(0, blocks)
        axes.set_ylim(lines, 0)
        ticks = [blocks * part / 4 for part in range(5)]
        axes.set_xticks(ticks, [str(round(tokens * tick / blocks)) for tick in ticks])
        axes.set_yticks([0, lines], ["0", str(heads)])
        axes.set_xlabel("key" if tensor in ("dk", "dv") else "query")
        axes.set_ylabel("head")
        for step, edge in enumerate(edges):
            low, width = 1.03, 0.03
            bottom = step / len(STEPS)
            axes.add_patch(
                Rectangle((low, bottom), width, 1 / len(STEPS), transform=axes.transAxes, clip_on=False,
                          facecolor=STEPS[step], edgecolor="none")
            )  # fmt: skip
            if step % 2 == 0:
                axes.text(
                    low + width + 0.01, bottom, digits(2.0**edge, 2), transform=axes.transAxes, va="bottom", fontsize=7
                )
        canvas.subplots_adjust(left=0.09, right=0.82, top=0.95, bottom=0.42 / (0.95 + 0.17 * max(3, lines)))
        svg = finish(canvas, name)
    caption = (
        f"How to read: the relative L2 error of the worst row in each block of up to {math.ceil(tokens / blocks)} "
        f"{'keys' if tensor in ('dk', 'dv') else 'queries'} and {math.ceil(heads / lines)} head"
        f"{'' if heads <= lines else 's'} (of all batches, one after another). A fault of one tile, one head or the "
        f"last rows shows as a stripe; roundings do not. The case: {one_line(record.case.id)[:200]}"
    )
    return Figure(name, f"Worst row of {NAMES[tensor]}, where", caption, svg)


def _fill(axes: Axes, places: list[tuple[int, int]], colour: str) -> None:
    """Draw all cells of one colour as one path: a fifth of the bytes of single ones."""
    if not places:
        return
    squares = [Path([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)], closed=True) for x, y in places]
    axes.add_patch(PathPatch(Path.make_compound_path(*squares), facecolor=colour, edgecolor="none", linewidth=0))
