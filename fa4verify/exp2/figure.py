"""The figure of `exp2 explore`: error against FMA count, alone and inside attention, with MUFU as the line to beat.

Contract: `draw` returns SVG, the same text for the same Exploration and matplotlib: fixed salt, no date, glyphs as
text. Nothing imports matplotlib before; where it is missing, SetError says so in one line.
"""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from fa4verify.exp2.errors import SetError
from fa4verify.exp2.hardware import NAME as MUFU

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fa4verify.exp2.explore import Exploration, Row

# Okabe and Ito's colours (Wong, Nature Methods 8, 441, 2011); marker and dash differ too.
_FA4 = ("FA4", "#000000", "s", "-")
_SERIES = {
    ("one", "floor"): ("p0 = 1, floor", "#0072B2", "o", "--"),
    ("free", "floor"): ("p0 free, floor", "#D55E00", "^", "--"),
    ("one", "nearest"): ("p0 = 1, nearest", "#009E73", "o", ":"),
    ("free", "nearest"): ("p0 free, nearest", "#CC79A7", "^", ":"),
}
_TITLES = {"max": "largest relative error", "rms": "RMSE", "bf16": "other bf16 roundings"}
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "fa4verify", "svg.fonttype": "none", "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"], "font.size": 8, "axes.titlesize": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.2, "lines.linewidth": 1.2, "lines.markersize": 4,
    "legend.frameon": False, "legend.fontsize": 7,
}  # fmt: skip


def draw(found: Exploration) -> str:
    """Return the SVG: three panels of exp2 alone and, if attention was run, three of attention."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetError(f"--figure needs matplotlib, which cannot be imported: {error}") from None
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        rows = 2 if found.effects else 1
        canvas = Figure(figsize=(9.6, 3.1 * rows))
        FigureCanvasSVG(canvas)
        axes = canvas.subplots(rows, 3, squeeze=False)
        for axis, name in zip(axes[0], _TITLES, strict=True):
            _alone(axis, found, name)
        if found.effects:
            _attention(axes[1], found)
        axes[0][0].legend()
        edge = 0.4 / canvas.get_figheight()  # inches; a layout engine would take two thirds of the time
        canvas.subplots_adjust(left=0.06, right=0.99, bottom=1.1 * edge, top=1 - 0.7 * edge, wspace=0.2, hspace=0.32)
        out = StringIO()
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _alone(axis: Any, found: Exploration, name: str) -> None:
    _line(axis, [(row.fmas, row.figures[name]) for row in found.rows if row.kind == "fa4" and row.fmas], _FA4)
    for (term, reduction), style in _SERIES.items():
        points = [
            (row.fmas, row.figures[name])
            for row in found.rows
            if row.chosen.range_reduction == reduction and (term, name) in row.answers
        ]
        _line(axis, points, style)
    given = [(row.fmas, row.figures[name]) for row in found.rows if row.kind == "given"]
    axis.plot(*_columns(given), "k*", label="given" if given else None)
    axis.axhline(getattr(found.mufu, name), color="#7A7A7A", linestyle="-.", label=MUFU)
    axis.set(yscale="log", title=f"exp2: {_TITLES[name]}", xlabel="FMAs")
    axis.xaxis.get_major_locator().set_params(integer=True)


def _attention(axes: Sequence[Any], found: Exploration) -> None:
    """FA4's sets as a line a dtype, everything else as points."""
    rows = {row.chosen.name: row for row in found.rows}
    panels = (
        ("o_ratio", "normal", "O as stored: RMSE over MUFU's"),
        ("lse_rmse", "normal", "LSE: RMSE, normal inputs"),
        ("lse_max", "one key", "LSE: largest error, rows of one key"),
    )
    for axis, (value, kind, title) in zip(axes, panels, strict=True):
        for dtype, colour, marker in (("bf16", "#0072B2", "s"), ("fp16", "#D55E00", "o")):
            good = [e for e in found.effects if (e.dtype, e.inputs) == (dtype, kind) and not e.nonfinite]
            points = [(rows[e.name], getattr(e, value)) for e in good if e.name != MUFU and rows[e.name].fmas]
            _line(axis, _of(points, {"fa4"}), (f"FA4, {dtype}", colour, marker, "-"))
            others = _of(points, {"given", "fit"})
            axis.plot(*_columns(others), marker, mfc="none", mec=colour, label=f"others, {dtype}" if others else None)
            base = [getattr(e, value) for e in good if e.name == MUFU]
            axis.axhline(base[0], color=colour, linestyle="-.", linewidth=0.8, label=f"{MUFU}, {dtype}")
        axis.set(yscale="log", title=title, xlabel="FMAs")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].legend()


def _of(points: Sequence[tuple[Row, float]], kinds: set[str]) -> list[tuple[int, float]]:
    return [(row.fmas, value) for row, value in points if row.kind in kinds]


def _line(axis: Any, points: Sequence[tuple[int, float]], style: tuple[str, str, str, str]) -> None:
    if points:
        label, colour, marker, dash = style
        axis.plot(*_columns(sorted(points)), color=colour, marker=marker, linestyle=dash, label=label)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
