"""What an audit finds out: facts, each with the lines of PTX it was read from.

Contract: `value` is the canonical text that is compared between releases and with the contract; None means that the
fact was looked for and not found, and `why` says what was missing. `NONE` is a finding ("no polynomial here"), not a
gap.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

NONE = "none"


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fact about one kernel; `lines` are lines of its PTX text."""

    value: str | None
    lines: tuple[int, ...] = ()
    why: str = ""


Facts = dict[str, Fact]


def found(values: Iterable[str], lines: Iterable[int]) -> Fact:
    """Return the fact that holds these values, each once, in order."""
    return Fact("; ".join(sorted(set(values))), tuple(sorted(set(lines))))


def missing(why: str) -> Fact:
    """Return a fact that was not found."""
    return Fact(None, why=why)


def hexadecimal(bits: int) -> str:
    """Return 32 bits as PTX writes a float: 3F31F519."""
    return f"{bits & 0xFFFFFFFF:08X}"


def number(bits: int) -> float:
    """Return the fp32 number of these bits."""
    value: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]
    return value


def decimal(bits: int) -> str:
    """Return an fp32 number as text that is exact and short: 8, -0.5."""
    return f"{number(bits):.9g}"


def ranges(numbers: Iterable[int]) -> str:
    """Return `44-47 60-63` for the integers 44 ... 47, 60 ... 63."""
    runs: list[list[int]] = []
    for one in sorted(set(numbers)):
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return " ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs) or NONE
