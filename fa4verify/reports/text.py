"""Numbers and foreign text as every renderer shows them.

Contract: three significant digits, at most nine characters and a sign; text from kernels and users (ids, messages)
cannot move the cursor, recolour the terminal or break a line.
"""

from __future__ import annotations

import unicodedata

NONE = "-"


def digits(value: float | None, significant: int = 3) -> str:
    """Show a number with three significant digits, or as many as asked for: 3.94e-5, 0.0123, 1.02, 413, 1.43e+6."""
    if value is None:
        return NONE
    if abs(value) < 1e5 and value == int(value):
        return str(int(value))
    if 1e-3 <= abs(value) < 999.5:
        return f"{value:#.{significant}g}".rstrip(".")
    mantissa, _, exponent = f"{value:.{significant - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent):+d}" if exponent else mantissa  # inf and nan have none


def percent(share: float | None) -> str:
    """Show a share of one in percent; only what is exactly 0 or 1 reads as 0 % or 100 %."""
    if share is None:
        return NONE
    if share in (0, 1):
        return f"{share:.0%}"
    shown = f"{100 * share:.3g}"
    return "<100%" if shown == "100" else f"{shown}%"


def printable(text: str) -> str:
    """Write control characters, direction marks and lone surrogates as escapes; keep newlines."""
    bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return "".join(ascii(char)[1:-1] if char != "\n" and unicodedata.category(char) in bad else char for char in text)


def one_line(text: str) -> str:
    """Join the lines of a text and make it printable."""
    return printable(" ".join(text.split()))


def seconds(value: float) -> str:
    """Show a duration: 0.42 s, 12.3 s, 4 min 05 s."""
    if value < 60:
        return f"{value:.3g} s"
    return f"{int(value) // 60} min {int(value) % 60:02d} s"
