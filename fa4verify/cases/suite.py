"""Suites in TOML become Suites.

Contract: a name loads a shipped suite, a path a file of the user's; the result is complete and checked (types, names,
distributions and their arguments, budgets, ids), except for kernel names, which belong to another room.
Every error is a SuiteError: one line with the file, the path of the key, what was found and what was expected.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fa4verify.cases.blocks import FIELDS, MOST_CASES, read_block
from fa4verify.cases.errors import SuiteError, one_of
from fa4verify.cases.limits import known_keys, read_budget, read_study
from fa4verify.vocabulary import Case, Suite

KEYS = ("name", "about", "study", "full", "budgets", "cases")


def load_suite(source: str | Path, *, full: bool = False) -> Suite:
    """Load a shipped suite by name, or a suite from a path that ends in .toml.

    Parameters
    ----------
    source
        Name or path.
    full
        What the suite's table `[full]` sets wins over every block: all rows where the suite samples them.

    Raises
    ------
    SuiteError
        Nothing of that name, something in it is wrong, or `full` of a suite that has no such table.
    """
    source = str(source)
    if source.endswith(".toml"):
        place: Traversable = Path(source)
        if not place.is_file():
            raise SuiteError("", f"no file {source!r}", "a suite in TOML")
    else:
        shipped = _shipped()
        if source not in shipped:
            raise SuiteError("", f"no suite {source!r}", f"{one_of(source, shipped)}, or a path that ends in .toml")
        place = shipped[source]
    try:
        return _read(place, source, full)
    except SuiteError as error:
        raise error.within(place.name) from None
    except RecursionError:
        raise SuiteError("", "lists or tables nested too deeply", "a suite in TOML", file=place.name) from None


def suites() -> dict[str, str]:
    """Return every shipped suite with what it is about."""
    return {name: tomllib.loads(place.read_text("utf-8"))["about"] for name, place in _shipped().items()}


def _shipped() -> dict[str, Traversable]:
    folder = files("fa4verify.cases").joinpath("suites")
    found = [place for place in folder.iterdir() if place.name.endswith(".toml")]
    return {place.name.removesuffix(".toml"): place for place in sorted(found, key=lambda place: place.name)}


def _read(place: Traversable, source: str, full: bool) -> Suite:
    try:
        table = tomllib.loads(place.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SuiteError("", f"byte {error.start} that is not UTF-8", "TOML, which is UTF-8") from None
    except OSError as error:
        raise SuiteError("", f"an unreadable file ({error.strerror})", "a suite in TOML") from None
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise SuiteError("", f"invalid TOML ({error})", "a suite in TOML") from None
    known_keys(table, KEYS, "")
    for name in ("name", "about"):
        if not isinstance(table.get(name), str) or not table[name].strip():
            raise SuiteError(name, repr(table[name]) if name in table else "nothing", "a text: it is required")
    named = known_keys(table.get("budgets", {}), table.get("budgets", {}), "budgets")
    budgets = {name: read_budget(name, value) for name, value in named.items()}
    if full and "full" not in table:
        raise SuiteError("full", "nothing", "a table [full]: this suite has no larger form")
    more = known_keys(table.get("full", {}), FIELDS, "full")
    cases = _cases(table.get("cases", []), budgets, source, more if full else {})
    used = {budget.name for case in cases for budget in case.budgets}
    for name in budgets:
        if name not in used:
            raise SuiteError(f"budgets.{name}", "a budget that no case uses", "a case that uses it, or its removal")
    study = read_study(table["study"], cases) if "study" in table else None
    return Suite(name=table["name"], about=table["about"], cases=cases, study=study)


def _cases(blocks: Any, budgets: dict[str, Any], source: str, full: Mapping[str, Any]) -> tuple[Case, ...]:
    if not isinstance(blocks, list) or not blocks:
        raise SuiteError("cases", repr(blocks), "at least one block [[cases]]")
    found: dict[str, Case] = {}
    origin: dict[str, str] = {}
    for i, block in enumerate(blocks):
        for case in read_block(block, f"cases[{i}]", budgets, source, full):
            if len(found) == MOST_CASES:
                raise SuiteError(f"cases[{i}]", f"more than {MOST_CASES} cases", "fewer, in several suites perhaps")
            if case.id in found:
                raise SuiteError(f"cases[{i}]", f"a second case {case.id}", f"another than that of {origin[case.id]}")
            found[case.id], origin[case.id] = case, f"cases[{i}]"
    return tuple(found.values())
