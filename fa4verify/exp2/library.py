"""The fits that the package ships, so that `exp2 explore` need not search: fits.json, made by `fit`.

Contract: one Entry for each degree, constant term, range reduction and objective that was searched. Constant terms are
those of `fit`, and `ends`: p(0) = 1 and octaves that meet (`--p0 one --continuous`; with floor p(1) = 2). Where no
float32 set has the shape, there is no Entry.
`at-least-one` is not searched: where the best free set has p0 >= 1 it is that, elsewhere the best set with p0 = 1
(the figures are convex in the coefficients up to fp32 rounding, so the constraint binds). A constant term that is asked
less never gets a worse set: `free` takes what `one` or `ends` found if that is better (`nested`), `one` FA4's own set.
Known failure mode: degrees 4 and up are searched for a time, so another machine finds other sets, near as good.
Remade by: fa4verify exp2 explore --refit --save fa4verify/exp2/fits.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, get_args

from fa4verify.exp2.errors import SetError
from fa4verify.exp2.sets import CoefficientSet, RangeReduction, parse_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fa4verify.exp2.merit import Merit

DEGREES = (1, 2, 3, 4, 5)
CONSTANT_TERMS = ("one", "at-least-one", "free", "ends")
RANGES: tuple[RangeReduction, ...] = get_args(RangeReduction)
OBJECTIVES = ("max", "rms", "bf16")
SEARCHED = ("one", "free", "ends")
_IMPOSSIBLE = (1, "ends", "nearest")  # 1 + c/2 = 2 (1 - c/2) at 2/3 alone, which float32 does not hold
COMMAND = "fa4verify exp2 explore --refit"

Key = tuple[int, str, str, str]  # degree, constant term, range reduction, objective
Entries = Mapping[Key, "Entry"]


@dataclass(frozen=True)
class Entry:
    """A fitted set, what was asked for, and its figures (`merit`: over every fraction, max over every x)."""

    key: Key
    chosen: CoefficientSet
    figures: Mapping[str, float]
    command: str


def name(key: Key) -> str:
    """Return how a fit is called: fit:3:free:floor:max."""
    return ":".join(("fit", *map(str, key)))


def keys(
    degrees: Iterable[int], terms: Iterable[str], ranges: Iterable[str], objectives: Iterable[str]
) -> tuple[Key, ...]:
    """Return every combination, degrees slowest."""
    return tuple((d, p0, r, o) for d in degrees for r in ranges for p0 in terms for o in objectives)


def shipped_fits() -> dict[Key, Entry]:
    """Return the fits of the package."""
    return read(files(__package__).joinpath("fits.json").read_text("utf-8"))


def read(content: str) -> dict[Key, Entry]:
    """Return the fits of a fits.json; SetError if it is none."""
    try:
        entries = [_entry(each) for each in json.loads(content)["fits"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SetError(f"no file of fits: {type(error).__name__}: {error}") from None
    return {entry.key: entry for entry in entries}


def _entry(each: Mapping[str, Any]) -> Entry:
    key = (int(each["degree"]), each["p0"], each["range"], each["objective"])
    values = tuple(parse_number(word) for word in each["coefficients"])
    chosen = CoefficientSet(name(key), values, each["range"], each["provenance"])
    return Entry(key, chosen, each["figures"], each["command"])


def text(entries: Entries) -> str:
    """Return the text that `read` reads: sorted by key, one fit a line."""
    fits = []
    for key, entry in sorted(entries.items()):
        degree, p0, range_, objective = key
        fits.append({
            "degree": degree, "p0": p0, "range": range_, "objective": objective,
            "coefficients": list(entry.chosen.hex), "figures": dict(entry.figures),
            "provenance": entry.chosen.provenance, "command": entry.command,
        })  # fmt: skip
    lines = ",\n".join(json.dumps(each) for each in fits)
    return f'{{"made_by": "{COMMAND} --save FILE",\n"fits": [\n{lines}\n]}}\n'


def find(entries: Entries, key: Key) -> Entry | None:
    """Return the fit for a key, `at-least-one` by the rule above; None if it was not searched."""
    degree, p0, range_, objective = key
    if p0 != "at-least-one":
        return entries.get(key)
    free = entries.get((degree, "free", range_, objective))
    return free if free and free.chosen.coefficients[0] >= 1.0 else entries.get((degree, "one", range_, objective))


def named(words: str) -> CoefficientSet:
    """Return the shipped fit of a name such as fit:4:at-least-one:floor:rms; SetError if there is none."""
    parts = words.split(":")
    found = None
    if len(parts) == 5 and parts[1].isdigit():
        found = find(shipped_fits(), (int(parts[1]), parts[2], parts[3], parts[4]))
    if found is None:
        raise SetError(
            f"{words!r}: no such fit; expected fit:DEGREE:P0:RANGE:OBJECTIVE of {DEGREES[0]} to {DEGREES[-1]}, "
            f"{' | '.join(CONSTANT_TERMS)}, {' | '.join(RANGES)}, {' | '.join(OBJECTIVES)}"
        )
    return found.chosen


def refit(
    wanted: Iterable[Key],
    *,
    seconds: float = 30.0,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
    done: Callable[[Entries], None] = lambda _: None,
) -> dict[Key, Entry]:
    """Search again for every key (`at-least-one`: both that it is made of).

    Parameters
    ----------
    wanted
        Keys; each takes up to `seconds` on two cores.
    seconds, seed
        As `fit` takes them.
    progress
        Called with the share that is done, 0 to 1.
    done
        Called with all entries so far after each search.
    """
    from fa4verify.arithmetic.exp2 import POLY_EX2
    from fa4verify.exp2.fit import fit, has_shape
    from fa4verify.exp2.merit import merit
    from fa4verify.exp2.remez import Shape
    from fa4verify.exp2.sets import shipped

    asked: dict[Key, None] = {}
    for degree, p0, range_, objective in wanted:
        for term in ("one", "free") if p0 == "at-least-one" else (p0,):
            asked[(degree, term, range_, objective)] = None
    entries: dict[Key, Entry] = {}
    for count, key in enumerate(asked):
        degree, p0, range_, objective = key
        ends = p0 == "ends"
        shape = Shape(degree, "one" if ends else p0, ends, range_)  # type: ignore[arg-type]
        command = f"fa4verify exp2 fit --degree {degree} --p0 {shape.constant_term}{' --continuous' * ends} "
        command += f"--range {range_} --objective {objective} --seconds {seconds:g} --seed {seed}"
        if (degree, p0, range_) == _IMPOSSIBLE:
            continue
        found = fit(shape, (objective,), seconds=seconds, seed=seed)[0]
        best = Entry(key, found.chosen, _figures(found.merit), command)
        if degree in POLY_EX2 and has_shape(own := shipped(degree), shape):
            best = _better(best, Entry(key, own, _figures(merit(own.float32)), "none: FA4's own set was not beaten"))
        entries[key] = best
        progress((count + 1) / len(asked))
        done(nested(entries))
    return nested(entries)


def nested(entries: Entries) -> dict[Key, Entry]:
    """Return the entries with each at least as good as every other that satisfies what it asks for."""
    found = {}
    for key, entry in entries.items():
        degree, term, range_, objective = key
        best = entry
        for other in SEARCHED if term != "ends" else ():
            rival = entries.get((degree, other, range_, objective))
            if rival and (term == "free" or rival.chosen.coefficients[0] == 1.0):
                best = _better(best, rival)
        chosen = CoefficientSet(
            name(key), best.chosen.coefficients, best.chosen.range_reduction, best.chosen.provenance
        )
        found[key] = Entry(key, chosen, best.figures, best.command)
    return found


def _better(one: Entry, other: Entry) -> Entry:
    objective = one.key[3]
    return other if abs(other.figures[objective]) < abs(one.figures[objective]) else one


def _figures(found: Merit) -> dict[str, float]:
    return {figure: float(value) for figure, value in asdict(found).items()}
