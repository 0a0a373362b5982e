"""The two tables of `exp2 explore` for a terminal, a document and a program.

Contract: three views of one Exploration. A figure stands beside its ratio to FA4's set of the same degree; in the
table of attention, ratios are to MUFU alone. The JSON has every field; its sets are in the form that `sets.parse`
reads.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from fa4verify.exp2.explore import FIGURES
from fa4verify.exp2.hardware import NAME as MUFU
from fa4verify.reports.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fa4verify.exp2.attention import Effect
    from fa4verify.exp2.explore import Exploration, Row

_SETS = ("set", "FMAs", "range", "max", "RMSE", "mean", "bf16", "fp16", "best for", "hazards")
_SETS_LEGEND = (
    "max: largest relative error over every x in [-126, 0] (nearest: over every fraction); the others with each "
    "fraction once; bf16, fp16: share of results whose rounding is not that of 2^x. x n: ratio to FA4's set of the "
    "degree. ends: p0 = 1 and octaves that meet. masked NaN: p0 < 1, so that every masked score becomes NaN; steps "
    "down: not monotone where octaves meet."
)
_TERMS = {"one": "p0 = 1", "at-least-one": "p0 >= 1", "free": "p0 free", "ends": "ends"}
Lines = list[tuple[str, ...]]


def terminal(found: Exploration, console: Console) -> None:
    """Print the table of sets, then that of attention."""
    console.print(_table(_SETS, _sets(found)))
    console.print(Text(_SETS_LEGEND, "dim"))
    if found.effects:
        console.print()
        console.print(_table(_attention_headers(found), _attention(found)))
        console.print(Text(_attention_legend(found), "dim"))


def markdown(found: Exploration) -> str:
    """Return both tables as Markdown, and the coefficients."""
    coefficients = [(row.chosen.name, row.chosen.range_reduction, " ".join(row.chosen.hex)) for row in found.rows]
    parts = ["# exp2: what fits buy\n", _markdown(_SETS, _sets(found)), _SETS_LEGEND + "\n"]
    if found.effects:
        parts += ["## Inside attention\n", _markdown(_attention_headers(found), _attention(found))]
        parts += [_attention_legend(found) + "\n"]
    parts += ["## Coefficients\n", _markdown(("set", "range", "p0 ... pd"), coefficients)]
    return "\n".join(parts)


def as_json(found: Exploration) -> str:
    """Return every field as JSON."""
    rows = [
        {
            "name": row.chosen.name,
            "coefficients": list(row.chosen.hex),
            "range": row.chosen.range_reduction,
            "provenance": row.chosen.provenance,
            "kind": row.kind,
            "fmas": row.fmas,
            "answers": [{"p0": term, "objective": objective} for term, objective in row.answers],
            "figures": dict(row.figures),
            "ratios_to_fa4": dict(row.ratios),
            "hazards": list(row.hazards),
        }
        for row in found.rows
    ]
    effects = [{key: _finite(value) for key, value in asdict(effect).items()} for effect in found.effects]
    attention = {"seeds": found.seeds, "columns": found.columns, "effects": effects}
    return json.dumps({"mufu": asdict(found.mufu), "sets": rows, "attention": attention}, indent=1)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sets(found: Exploration) -> Lines:
    mufu = asdict(found.mufu)
    first = (MUFU, "0", "-", *(_figure(name, mufu[name]) for name in FIGURES[:5]), "", "")
    return [first, *(_set(row) for row in found.rows)]


def _set(row: Row) -> tuple[str, ...]:
    shown = []
    for name in FIGURES[:5]:
        ratio = f" x{row.ratios[name]:.3f}" if name in row.ratios and name != "bias" else ""
        shown.append(_figure(name, row.figures[name]) + ratio)
    answers: dict[str, list[str]] = {}
    for term, objective in row.answers:
        answers.setdefault(_TERMS[term], []).append(objective)
    best = "; ".join(f"{term}: {', '.join(objectives)}" for term, objectives in answers.items())
    reduction = row.chosen.range_reduction
    return (one_line(row.chosen.name), str(row.fmas), reduction, *shown, best, ", ".join(row.hazards))


def _figure(name: str, value: float) -> str:
    if name in ("bf16", "fp16"):
        return f"{100 * value:.3g}%"
    return f"{value:+.2e}" if name == "bias" else f"{value:.3e}"


def _attention_headers(found: Exploration) -> tuple[str, ...]:
    kinds = dict.fromkeys(effect.inputs for effect in found.effects)
    return (
        "set",
        "FMAs",
        "dtype",
        *(f"O {kind}" for kind in kinds),
        "LSE normal",
        "its mean",
        "LSE peaked",
        "LSE one key, max",
    )


def _attention(found: Exploration) -> Lines:
    fmas = {row.chosen.name: str(row.fmas) for row in found.rows}
    lines: Lines = []
    for dtype in dict.fromkeys(effect.dtype for effect in found.effects):
        for name in dict.fromkeys(effect.name for effect in found.effects):
            mine = {each.inputs: each for each in found.effects if (each.name, each.dtype) == (name, dtype)}
            normal, peaked, single = mine["normal"], mine["peaked"], mine["one key"]
            lines.append((
                one_line(name), fmas.get(name, "0"), dtype, *map(_o, mine.values()),
                _value(normal, f"{normal.lse_rmse:.2e}"), _value(normal, f"{normal.lse_mean:+.1e}"),
                _value(peaked, f"{peaked.lse_rmse:.2e}"), _value(single, f"{single.lse_max:.2e}"),
            ))  # fmt: skip
    return lines


def _o(effect: Effect) -> str:
    """Show MUFU's RMSE, for the others the ratio as stored and before the rounding of O."""
    if effect.name == MUFU:
        return f"{effect.o_rmse:.3e}"
    if effect.o_ratio is None or effect.before_ratio is None:  # MUFU's O is exact
        return _value(effect, "exact" if effect.o_rmse == 0.0 else f"{effect.o_rmse:.2e}")
    return _value(effect, f"{effect.o_ratio:.4f} ({effect.before_ratio:.4f})")


def _value(effect: Effect, text: str) -> str:
    return f"{int(effect.nonfinite)} NaN" if effect.nonfinite else text


def _attention_legend(found: Exploration) -> str:
    shares = {f"{100 * effect.share:.3g}%" for effect in found.effects if effect.name != MUFU}
    return (
        f"O: RMSE over that of MUFU alone, as stored (before O is rounded); seeds pooled: {found.seeds}; share of "
        f"emulated exponentials: {', '.join(sorted(shares)) or '0%'}; exact: O = V in every bit. LSE: RMSE and mean "
        "error, for one key the largest. n NaN: elements of O and LSE."
    )


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for index, header in enumerate(headers):
        left = index == 0 or header in ("best for", "hazards", "range", "dtype")
        table.add_column(Text(header), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _markdown(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    rule = ["---"] * len(headers)
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in (headers, rule, *rows)) + "\n"


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
