"""What options of several commands have in common."""

from __future__ import annotations

from cyclopts import Parameter


def _at_least_one(_: object, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError("must be at least 1")


COUNT = Parameter(validator=_at_least_one)
