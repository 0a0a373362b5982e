"""Which check catches which kernel: a matrix of kernels by what failed, FlashAttention's own rule as one more column.

Contract: a cell is caught (some case of the kernel failed that check), passed (it was judged and held on every case) or
empty (never judged). A case on which FlashAttention's rule fails a kernel that passes everything of ours is a false
alarm, and left out of its column for every kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from fa4verify.reports.figures.canvas import GREY, INK, SERIES, Figure, clean, draw, finish
from fa4verify.reports.figures.pick import grouped, shown
from fa4verify.reports.measures import fa_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fa4verify.vocabulary import Record

RULE = "FlashAttention's rule"
MOST_KERNELS, MOST_CHECKS = 40, 22


def matrix(records: Sequence[Record]) -> Figure | None:
    """Draw the matrix where several kernels met the same suite and some failed."""
    kernels = grouped(
        (record for record in records if record.verdict.outcome != "SKIPPED"), lambda record: record.case.kernel
    )
    cells = {name: _cells(group, _false_alarms(records)) for name, group in kernels.items()}
    failing = [name for name, found in cells.items() if any(found.values())]
    if len(cells) < 2 or not failing:
        return None
    names = sorted(cells, key=lambda name: (name not in failing, list(cells).index(name)))[:MOST_KERNELS]
    weight: dict[str, int] = {}
    for name in names:
        for check, caught in cells[name].items():
            weight[check] = weight.get(check, 0) + caught
    ours = sorted((check for check in weight if check != RULE), key=lambda check: -weight[check])[:MOST_CHECKS]
    checks = [*ours, *([RULE] if RULE in weight else [])]
    height = 1.35 + 0.145 * len(names)
    with draw(1, 1, height) as (canvas, (axes,)):
        axes.grid(visible=False)
        big = [(x, y) for y, name in enumerate(names) for x, check in enumerate(checks) if cells[name].get(check)]
        small = [
            (x, y) for y, name in enumerate(names) for x, check in enumerate(checks) if cells[name].get(check) is False
        ]
        if big:
            axes.add_patch(PathPatch(_squares(big, 0.42), facecolor=SERIES[1], edgecolor="none"))
        if small:
            axes.add_patch(PathPatch(_squares(small, 0.1), facecolor=GREY, edgecolor="none"))
        if RULE in checks:
            axes.axvline(len(checks) - 1.5, color=INK, linewidth=0.6)
        axes.set_xlim(-0.6, len(checks) - 0.4)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(checks)), checks, rotation=60, ha="left", rotation_mode="anchor", fontsize=7)
        axes.set_yticks(range(len(names)), [shown(name) for name in names], fontsize=7)
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        canvas.subplots_adjust(left=0.36, right=0.86, top=1 - 1.25 / height, bottom=0.05 / height)
        svg = finish(canvas, "checks")
    missing = len(cells) - len(names)
    caption = (
        "How to read: large square, the check fails the kernel on at least one case; dot, it holds on all; empty, "
        "never judged. A row with a dot under FlashAttention's rule and a square elsewhere is a kernel that the rule "
        "lets through. Cases on which the rule fails a kernel that passes everything else are left out of its column."
        + (f" {missing} more kernels not drawn." if missing else "")
    )
    return Figure("checks", "Which check catches which kernel", caption, svg)


def _cells(records: Sequence[Record], alarms: set[bytes]) -> dict[str, bool]:
    """Return for each check that judged the kernel whether it failed it."""
    found: dict[str, bool] = {}
    for record in records:
        for check, failed in _checks(record):
            found[check] = found.get(check, False) or failed
        rule = fa_rule(record)
        if rule is not None and _problem(record) not in alarms:
            found[RULE] = found.get(RULE, False) or not rule
    return found


def _checks(record: Record) -> Iterator[tuple[str, bool]]:
    if record.verdict.outcome in ("CRASHED", "TIMEOUT"):
        yield record.verdict.outcome.lower(), True
        return
    failed = record.verdict.outcome == "FAIL"
    for finding in record.verdict.findings:
        if finding.metric is not None and finding.tensor is not None and (finding.passed or finding.value is not None):
            yield clean(f"{finding.tensor} {finding.metric}"), failed and not finding.passed
        elif failed and not finding.passed and not finding.message.startswith(("hint:", "never active", "no power")):
            yield "contract", True


def _false_alarms(records: Sequence[Record]) -> set[bytes]:
    sound = [record for record in records if record.verdict.outcome == "PASS" and fa_rule(record) is False]
    return {_problem(record) for record in sound}


def _problem(record: Record) -> bytes:
    """Return what a case asks, whichever kernel it asks."""
    case = msgspec.structs.replace(
        record.case, id="", kernel="", options={}, budgets=(), substituted=False, requires=()
    )
    return msgspec.json.encode(case)


def _squares(places: Sequence[tuple[int, int]], half: float) -> Path:
    return Path.make_compound_path(
        *(
            Path(
                [(x + dx * half, y + dy * half) for dx, dy in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))],
                closed=True,
            )
            for x, y in places
        )
    )
