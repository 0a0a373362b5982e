"""What fits buy: degree x constant term x range reduction x objective beside MUFU and FA4's own sets, then attention.

Contract: `explore` returns one Row for each distinct set: FA4's, the user's, then the fits asked for, which come from
the package (`library`) or are searched again. Figures are those of `merit`: the largest relative error over every x in
[-126, 0] (reduction to nearest: over every fraction), the others with each fraction once. The degree is the number of
FMAs; range reduction and exponent take the same six other instructions whatever the set.
Attention is run for the sets that a kernel could adopt: FA4's, the user's, and of degrees 2 to 4 (1 is out of the
question, 5 cannot be told from MUFU) the fits named in `_ADOPTABLE`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2 import library
from fa4verify.exp2.hardware import MEASURED
from fa4verify.exp2.merit import merit
from fa4verify.exp2.search import ends
from fa4verify.exp2.sets import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fa4verify.exp2.attention import Columns, Effect
    from fa4verify.exp2.library import Entry, Key
    from fa4verify.exp2.merit import Merit
    from fa4verify.exp2.sets import CoefficientSet

# Constant term, range reduction, objective.
_ADOPTABLE = (
    ("at-least-one", "floor", "rms"), ("ends", "floor", "rms"), ("one", "nearest", "rms"), ("one", "nearest", "bf16"),
)  # fmt: skip
_WORTH_RUNNING = (2, 3, 4)
FIGURES = ("max", "rms", "bias", "bf16", "fp16", "e4m3")


@dataclass(frozen=True)
class Row:
    """One set: `answers` are the (constant term, objective) pairs it is the shipped fit for.

    `ratios` compare with FA4's set of the degree, where there is one; `hazards` are short words.
    """

    chosen: CoefficientSet
    kind: str  # fa4, given, fit
    answers: tuple[tuple[str, str], ...]
    figures: Mapping[str, float]
    ratios: Mapping[str, float]
    hazards: tuple[str, ...]

    @property
    def fmas(self) -> int:
        """FMAs of Horner's rule."""
        return self.chosen.degree


@dataclass(frozen=True)
class Exploration:
    """Everything that `exp2 explore` shows."""

    mufu: Merit
    rows: tuple[Row, ...]
    effects: tuple[Effect, ...] = ()
    seeds: int = 0
    columns: str = "table"


def explore(
    wanted: Sequence[Key], given: Sequence[CoefficientSet] = (), entries: Mapping[Key, Entry] | None = None
) -> Exploration:
    """Return the table of sets, without attention.

    Parameters
    ----------
    wanted
        Keys of fits (`library.keys`); a key that nobody searched is left out.
    given
        The user's sets.
    entries
        Fits to take instead of the package's.
    """
    known = library.shipped_fits() if entries is None else entries
    degrees = sorted({key[0] for key in wanted} | {chosen.degree for chosen in given})
    reference = {degree: _measured(shipped(degree)) for degree in degrees if degree in POLY_EX2}
    rows = [Row(shipped(d), "fa4", (), reference[d], {}, hazards(shipped(d))) for d in reference]
    found = {_identity(row.chosen): row for row in rows}
    for chosen in given:
        if _identity(chosen) not in found:
            found[_identity(chosen)] = _row(chosen, "given", _measured(chosen), reference)
    for key in wanted:
        entry = library.find(known, key)
        if entry is not None:
            row = found.get(_identity(entry.chosen)) or _row(entry.chosen, "fit", entry.figures, reference)
            found[_identity(entry.chosen)] = replace(row, answers=(*row.answers, (key[1], key[3])))
    order = {"fa4": 0, "given": 1, "fit": 2}
    return Exploration(MEASURED, tuple(sorted(found.values(), key=lambda row: (row.fmas, order[row.kind]))))


def with_attention(
    found: Exploration, *, seeds: int = 4, columns: Columns = "table", progress: Callable[[int], None] = lambda _: None
) -> Exploration:
    """Return the exploration with the effects of its candidates; `progress` in hundredths."""
    from fa4verify.exp2.attention import effects, runs

    sets = candidates(found)
    total, done = runs(sets, seeds), 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = 100 * done // total, done + count
        progress(100 * done // total - before)

    measured = effects(sets, seeds=seeds, columns=columns, progress=advance)
    return replace(found, effects=measured, seeds=seeds, columns=columns)


def candidates(found: Exploration) -> tuple[CoefficientSet, ...]:
    """Return the sets worth running inside attention."""
    chosen = {}
    for row in found.rows:
        if row.kind != "fit":
            chosen[_identity(row.chosen)] = row.chosen
    for term, reduction, objective in _ADOPTABLE:
        for row in found.rows:
            answers = row.chosen.range_reduction == reduction and (term, objective) in row.answers
            if answers and row.fmas in _WORTH_RUNNING:
                chosen[_identity(row.chosen)] = row.chosen
    return tuple(sorted(chosen.values(), key=lambda each: each.degree))


def hazards(chosen: CoefficientSet) -> tuple[str, ...]:
    """Return what a kernel would notice first, in two words each."""
    found = []
    if chosen.coefficients[0] < 1.0:
        found.append("masked NaN")
    left, right = ends(chosen.float32, (0.0, 1.0) if chosen.range_reduction == "floor" else (-0.5, 0.5))
    if right > 2.0 * left:
        found.append("steps down")
    return tuple(found)


def _row(
    chosen: CoefficientSet,
    kind: str,
    figures: Mapping[str, float],
    reference: Mapping[int, Mapping[str, float]],
) -> Row:
    theirs = reference.get(chosen.degree)
    ratios = {name: abs(figures[name]) / abs(theirs[name]) for name in FIGURES if theirs[name]} if theirs else {}
    return Row(chosen, kind, (), figures, ratios, hazards(chosen))


def _measured(chosen: CoefficientSet) -> dict[str, float]:
    found = merit(chosen.float32, floor=chosen.range_reduction == "floor")
    return {name: float(value) for name, value in asdict(found).items()}


def _identity(chosen: CoefficientSet) -> tuple[tuple[float, ...], str]:
    return chosen.coefficients, chosen.range_reduction
