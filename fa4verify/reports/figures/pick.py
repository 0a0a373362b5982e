"""Which records a figure is drawn from, and under which name.

Contract: a line stands for one kernel with its options (and what the figure names beside it); where there are more
lines than a reader can tell apart, those of most records are drawn and `left_out` says how many were not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from fa4verify.reports.figures.canvas import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from fa4verify.vocabulary import Case, Metrics, Record

MOST = 5  # lines in one pair of axes

K = TypeVar("K", bound="Hashable")


def label(case: Case, *, without: Iterable[str] = ()) -> str:
    """Return kernel and options, those in `without` left out: what tells lines apart."""
    options = {name: value for name, value in sorted(case.options.items()) if name not in without}
    return " ".join((case.kernel, *(f"{name}={value}" for name, value in options.items())))


def shown(name: str) -> str:
    """Return a label as a legend shows it: an import string without its module."""
    kernel, space, options = name.partition(" ")
    return clean(f"{kernel.rpartition(':')[2] or kernel}{space}{options}")


def grouped(records: Iterable[Record], key: Callable[[Record], K]) -> dict[K, list[Record]]:
    """Return the records by key, in the order of their first record."""
    groups: dict[K, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def most(groups: dict[K, list[Record]], limit: int = MOST) -> tuple[dict[K, list[Record]], int]:
    """Return the groups of most records, in their old order, and how many were left out."""
    kept = set(sorted(groups, key=lambda name: -len(groups[name]))[:limit])
    return {name: group for name, group in groups.items() if name in kept}, max(0, len(groups) - limit)


def left_out(count: int, noun: str = "kernel") -> str:
    """Return the sentence for the caption."""
    return f" {count} more {noun}{'' if count == 1 else 's'} of fewer cases not drawn." if count else ""


def measured(record: Record, tensor: str) -> Metrics | None:
    """Return the metrics of a tensor if they hold what a figure needs."""
    found = record.metrics.get(tensor)
    return found if found is not None and found.profile is not None else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that are there."""
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None


def from_sixteenths(number: int | None) -> float | None:
    """Turn round(16 log2 x) back into x."""
    return None if number is None else 2.0 ** (number / 16)
