"""Sollya's fpminimax as a peer: the tool that FA4's coefficients come from, where it is installed.

Contract: `fpminimax` runs the `sollya` program (Debian package sollya, 8.0) and returns float32 coefficients, or raises
`MissingError` where there is none. Nothing else of this package needs Sollya.
How FA4's five rows come out digit for digit: `fpminimax(2^x, d, [|1, SG, ..., SG|], [0;1])`, relative error: the
constant is not fixed in the approximation but rounded to a 1-bit format afterwards. That is not the best set with
p0 = 1: real arithmetic allows 2.3 % less at degree 3, 3.6 % at degree 5 (`remez.minimax`). Fixing the constant makes
fpminimax fail on [0, 1], where the remaining basis vanishes at 0, so "fixed" asks for [2^-53, 1].
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Literal

Way = Literal["one-bit", "fixed", "free"]
_TIMEOUT = 120


class MissingError(RuntimeError):
    """No `sollya` program."""


@dataclass(frozen=True)
class Answer:
    """Coefficients, constant first, and how long the program ran, its start included."""

    coefficients: tuple[float, ...]
    seconds: float


def available() -> bool:
    """Tell whether there is a `sollya` program."""
    return shutil.which("sollya") is not None


def version() -> str:
    """Return what the program calls itself, such as "sollya 8.0"."""
    program = shutil.which("sollya")
    if program is None:
        raise MissingError("no program called sollya (Debian: apt-get install sollya)")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    found = re.search(r"sollya \d+(?:\.\d+)*", done.stdout + done.stderr)
    return found[0] if found else "sollya of unknown version"


def run(script: str) -> str:
    """Return what Sollya prints for a script, at 200 bits and in hex; RuntimeError if it speaks of an error."""
    program = shutil.which("sollya")
    if program is None:
        raise MissingError("no program called sollya (Debian: apt-get install sollya)")
    text = f"prec = 200!; display = hexadecimal!; verbosity = 0!;\n{script}\nquit;\n"
    done = subprocess.run(
        [program], input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False, encoding="utf-8"
    )
    if done.returncode != 0 or "error" in done.stdout.lower():
        raise RuntimeError(f"sollya: exit code {done.returncode}: {(done.stderr + done.stdout).strip()[:500]}")
    return done.stdout


def fpminimax(degree: int, way: Way = "one-bit") -> Answer:
    """Return fpminimax's float32 polynomial for 2^f by relative error.

    Parameters
    ----------
    degree
        1 or more for "fixed", else 0 or more.
    way
        "one-bit": the constant in a 1-bit format, as FA4's; "fixed": p0 = 1 in the approximation too; "free".
    """
    singles = ["SG"] * degree
    if way == "fixed":
        monomials = ", ".join(str(k) for k in range(1, degree + 1))
        call = f"fpminimax(2^x, [|{monomials}|], [|{', '.join(singles)}|], [1b-53;1], relative, 1)"
    else:
        formats = ", ".join(["1" if way == "one-bit" else "SG", *singles])
        call = f"fpminimax(2^x, {degree}, [|{formats}|], [0;1], relative)"
    begin = time.perf_counter()
    printed = run(f"p = {call};\nfor i from 0 to {degree} do print(coeff(p, i));")
    took = time.perf_counter() - begin
    words = re.findall(r"^\s*(-?(?:0x[0-9a-f.]+p[+-]?\d+|0|1))\s*$", printed, re.MULTILINE)
    if len(words) != degree + 1:
        raise RuntimeError(f"sollya: expected {degree + 1} coefficients, got {printed.strip()[:500]!r}")
    return Answer(tuple(float.fromhex(word) for word in words), took)
