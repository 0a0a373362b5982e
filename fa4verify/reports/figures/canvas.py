"""One figure as SVG: the same bytes wherever the same matplotlib draws it, readable on white and on black.

Contract: `draw` gives a canvas under settings of its own (no matplotlibrc of the user's counts), `finish` turns it into
SVG without date, version or random ids; ids begin with the figure's name, so that several fit in one page. Text stays
text, in black that becomes the page's own text colour. Foreign text (names of kernels) is drawn as it is: no mathtext,
no control characters, 32 characters at most.

Colours: Okabe and Ito's (Wong, Nature Methods 8, 441, 2011), those of luminance 0.12 to 0.30, which have a contrast of
3 to 1 with white and with the report's black alike; series differ in marker and dash too, for print and for whoever
sees no hue. Steps of maps: cividis (Nunez, Anderton, Renslow, PLOS ONE 13(7), 2018), whose lightness alone tells.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from fa4verify.reports.text import digits, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D1F")
GREY = "#7A7A7A"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1, 3, 3)))
MARKERS = ("o", "s", "^", "D", "v")
STEPS = ("#00224e", "#213d6b", "#4d556b", "#6c6e72", "#8a8779", "#aba074", "#cfba68", "#fee838")  # cividis, 8 of it
INK = "#010203"  # becomes the page's text colour
WIDTH = 6.4  # inches
_LONGEST = 32
_FONT = "font-family: 'DejaVu Sans', sans-serif; "
_ROOT_STYLE = "stroke-linejoin: round; stroke-linecap: butt; font-family: 'DejaVu Sans', sans-serif"

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fa4verify",
    "svg.image_inline": True,
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.unicode_minus": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 2.6,
    "legend.borderaxespad": 0.2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "savefig.transparent": True,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


@dataclass(frozen=True)
class Figure:
    """A figure with what it shows, how to read it and what was left out, and its SVG."""

    name: str
    title: str
    caption: str
    svg: str


@contextmanager
def draw(rows: int = 1, columns: int = 1, height: float = 2.6, **layout: Any) -> Iterator[tuple[Canvas, list[Axes]]]:
    """Give a canvas of `height` inches and its axes, row by row; `layout` is for `Canvas.subplots`."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        canvas = Canvas(figsize=(WIDTH, height))
        FigureCanvasSVG(canvas)
        axes = canvas.subplots(rows, columns, squeeze=False, **layout)
        yield canvas, list(axes.flat)


def finish(canvas: Canvas, name: str) -> str:
    """Return the SVG element; `name` is a word, unique on its page."""
    out = StringIO()
    canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return compact(out.getvalue(), name)


def compact(svg: str, name: str) -> str:
    """Return matplotlib's SVG in a third of the bytes: no wrappers, no unused ids, no repeated fonts, short numbers.

    Its `<style>` would reach into the page around it, so what it says stands in the root's own style instead.
    """
    root = ET.fromstring(svg)
    used = dict.fromkeys(re.findall(r"(?:url\(|href=\")#([^\")]+)", svg))
    ids = {old: f"{name}-{number}" for number, old in enumerate(used)}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        if element.tag != "text":
            element.text = None
        element.attrib = {
            key.rpartition("}")[2]: ids.get(value, "") if key == "id" else _shortened(value, ids)
            for key, value in element.attrib.items()
            if (key != "id" or value in ids) and not value.startswith("rotate(-0 ")
        }
    _unwrap(root)
    _hoist(root)
    box = root.attrib["viewBox"]
    root.attrib = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": box, "style": _ROOT_STYLE}
    return ET.tostring(root, encoding="unicode")


def _unwrap(parent: ET.Element) -> None:
    """Put the children of groups that say nothing in their place; drop what is not there to be seen."""
    children: list[ET.Element] = []
    for child in parent:
        _unwrap(child)
        if child.tag == "g" and not child.attrib:
            children += child
        elif child.tag not in ("metadata", "style") and child.attrib.get("style") != "fill: none" and _says(child):
            children.append(child)
    parent[:] = children


def _hoist(root: ET.Element) -> None:
    """Give the style that all marks of a group share to the group."""
    for group in root.iter("g"):
        styles = {child.attrib.get("style") for child in group}
        if len(group) > 1 and len(styles) == 1 and all(child.tag == "use" for child in group):
            group.attrib["style"] = styles.pop() or ""
            for child in group:
                child.attrib.pop("style", None)


def _says(element: ET.Element) -> bool:
    return element.tag not in ("defs", "g") or len(element) > 0


def _shortened(value: str, ids: dict[str, str]) -> str:
    """Cut coordinates to a hundredth of a point (4 micrometres); point references at the new ids."""
    value = re.sub(r"#(\w+)", lambda name: f"#{ids.get(name[1], name[1])}", value)
    value = value.replace(INK, "currentColor").replace(_FONT, "")
    value = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
    return re.sub(r"\s*\n\s*", "", re.sub(r"([MLCQZz]) ", r"\1", value))


def clean(text: str) -> str:
    """Return foreign text fit for a label: printable ASCII on one line, cut in the middle."""
    text = one_line(text).encode("ascii", "backslashreplace").decode()
    text = f" {text}" if text.startswith("_") else text  # matplotlib leaves such names out of a legend
    half = (_LONGEST - 1) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}..{text[-half:]}"


def series(index: int, *, marker: bool = True) -> dict[str, Any]:
    """Return colour, dash and marker of the series with this number."""
    style = {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[index // len(SERIES) % len(DASHES)]}
    return {**style, **({"marker": MARKERS[index % len(MARKERS)]} if marker else {})}


def legend_above(canvas: Canvas, axes: list[Axes], *, columns: int = 3) -> float:
    """Put one legend for all axes above them; return where the axes must end, as a share of the height."""
    named = dict(zip(*reversed(_handles(axes)), strict=True))
    rows = -(-len(named) // columns)
    canvas.legend(list(named.values()), list(named), loc="upper left", ncols=columns)
    return 1 - (0.09 + 0.155 * rows) / float(canvas.get_figheight())


def _handles(axes: list[Axes]) -> tuple[list[Any], list[str]]:
    found = [pair.get_legend_handles_labels() for pair in axes]
    return [handle for handles, _ in found for handle in handles], [str(name) for _, names in found for name in names]


def log_axis(axes: Axes, which: str, *, base: int = 10, ticks: int = 8) -> None:
    """Make an axis logarithmic with plain labels: 1e-5, or 256 for base 2; `ticks` at most."""
    getattr(axes, f"set_{which}scale")("log", base=base)
    axis = getattr(axes, f"{which}axis")
    low, high = sorted(getattr(axes, f"get_{which}lim")())
    narrow = base == 10 and low > 0 and high / low < 200
    axis.set_major_locator(LogLocator(base=base, subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value) if base == 10 else f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def levels(axes: Axes, which: str, values: list[float], *, base: int = 10) -> None:
    """Make an axis logarithmic with exactly these ticks."""
    log_axis(axes, which, base=base)
    getattr(axes, f"set_{which}ticks")(values, [f"{value:g}" for value in values])


def _power(value: float) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e4 else digits(value, 2).replace(".0e", "e")
