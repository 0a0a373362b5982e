"""Fitted coefficients in the forms that people paste: decimal, hex, bits, a row of POLY_EX2, a C array, JSON.

Contract: every form holds exactly the float32 numbers: decimals are exact and not rounded, as in FA4's own table. Each
carries its provenance: what was asked, of which version, and what was measured. The JSON of one set is what
`sets.parse` reads; a front is an object with `front`, a list of such.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2.merit import merit
from fa4verify.exp2.sets import shipped
from fa4verify.exp2.targets import OBJECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fa4verify.exp2.fit import Fit
    from fa4verify.exp2.merit import Merit


def decimal(value: float) -> str:
    """Return the exact decimal of a float; 1.0 for 1."""
    text = format(Decimal(value), "f")
    return text if "." in text else f"{text}.0"


def bits(value: float) -> str:
    """Return the float32's bits as eight hex digits."""
    return f"{int(np.float32(value).view(np.uint32)):08X}"


def measured(found: Fit) -> str:
    """Return in one line what is known of a fit's errors."""
    figures = found.merit
    shares = ", ".join(f"{name} {getattr(figures, name):.4g}" for name in ("bf16", "fp16", "e4m3"))
    over_x = "" if math.isnan(found.confirmed) else f"max over all x in [-126, 0) {found.confirmed:.6g}, "
    return (
        f"{over_x}max {figures.max:.6g}, rms {figures.rms:.4g}, mean {figures.bias:+.3g}, other roundings: {shares}; "
        f"in real arithmetic at most {found.certificate.upper:.10g} (best possible {found.best_real:.10g})"
    )


def poly_ex2_row(found: Fit) -> str:
    """Return a row to paste into FA4's POLY_EX2, with its provenance as comments."""
    lines = [f"    # {found.chosen.provenance}", f"    # {measured(found)}", f"    {found.shape.degree}: ("]
    lines += [f"        {decimal(value)}," for value in found.chosen.coefficients]
    return "\n".join([*lines, "    ),"])


def c_array(found: Fit) -> str:
    """Return a C99 array of hex floats, constant first."""
    words = ", ".join(f"{word}f" for word in found.chosen.hex)
    count = len(found.chosen.coefficients)
    return (
        f"/* {found.chosen.provenance}\n   {measured(found)} */\n"
        f"static const float exp2_p{found.shape.degree}[{count}] = {{{words}}};"
    )


def as_json(found: Sequence[Fit]) -> str:
    """Return one set as an object, several as {"front": [...]}."""
    content = [_content(each) for each in found]
    return json.dumps(content[0] if len(content) == 1 else {"front": content}, indent=1)


def _content(found: Fit) -> dict[str, Any]:
    chosen = found.chosen
    return {
        "name": chosen.name,
        "coefficients": list(chosen.hex),
        "range": chosen.range_reduction,
        "provenance": chosen.provenance,
        "decimal": [decimal(value) for value in chosen.coefficients],
        "bits": [bits(value) for value in chosen.coefficients],
        "figures": {name: getattr(found.merit, name) for name in OBJECTIVES},
        "max_over_all_x": None if math.isnan(found.confirmed) else found.confirmed,
        "sup_norm": {
            "lower": found.certificate.lower,
            "upper": found.certificate.upper,
            "at": found.certificate.where,
            "best_possible": found.best_real,
        },
        "hazards": list(found.hazards),
        "candidates": found.evaluated,
        "seconds": round(found.seconds, 2),
    }


def reference(degree: int) -> tuple[str, Merit]:
    """Return name and figures of what FA4 ships for a degree, of its best set where it ships none."""
    chosen = shipped(min(degree, max(POLY_EX2)))
    return chosen.name, merit(chosen.float32)


def terminal(found: Sequence[Fit], console: Console) -> None:
    """Print the figures as ratios to FA4's set of the degree, then each set in every form."""
    name, theirs = reference(found[0].shape.degree)
    table = Table("", *OBJECTIVES)
    table.add_row(name, *(f"{getattr(theirs, each):.3g}" for each in OBJECTIVES))
    for number, each in enumerate(found, 1):
        table.add_row(f"{number}, ratio", *(_ratio(each.merit, theirs, figure) for figure in OBJECTIVES))
    console.print(table)
    console.print(Text("max over every x in [-126, 0]; the others uniform in f; bias by size", "dim"))
    for number, each in enumerate(found, 1):
        console.print()
        console.print(Text(f"{number}. {each.chosen.provenance}", "bold"), soft_wrap=True)
        console.print(Text(measured(each)), soft_wrap=True)
        for k, (value, word) in enumerate(zip(each.chosen.coefficients, each.chosen.hex, strict=True)):
            console.print(Text(f"  p{k} = {decimal(value)} = {word} = {bits(value)}"), soft_wrap=True)
        console.print(Text(poly_ex2_row(each)), soft_wrap=True)
        console.print(Text(c_array(each)), soft_wrap=True)
        for hazard in each.hazards:
            console.print(Text.assemble(("HAZARD", "bold red"), f" {hazard}"), soft_wrap=True)
    best = found[0]
    console.print()
    console.print(Text(f"{best.evaluated} candidates, {best.seconds:.1f} s", "dim"))


def _ratio(ours: Merit, theirs: Merit, name: str) -> str:
    other = theirs.objective(name)
    return f"{ours.objective(name) / other:.3f}" if other else f"{ours.objective(name):.3g} to 0"
