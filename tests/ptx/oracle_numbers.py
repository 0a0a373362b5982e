"""Numbers as exact fractions, and codes of binary formats: what the oracle's floating-point semantics rest on.

Contract: nothing here shares a line with fa4verify.arithmetic. A code is a Python integer; `decode` makes of it a
Fraction, "nan", "inf" or "-inf" (the sign of a zero is the code's top bit, read by `negative`), `encode` rounds a
Fraction once. Source: IEEE 754 and the tables of formats in the PTX ISA.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt


@dataclass(frozen=True)
class Format:
    """A binary format with subnormals; `infinite` is false where all ones of the exponent are numbers (e4m3)."""

    bits: int
    fraction: int
    infinite: bool = True

    @property
    def bias(self) -> int:
        """Bias of the exponent."""
        return (1 << self.bits - 2 - self.fraction) - 1

    @property
    def least(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << self.bits - 1

    @property
    def infinity(self) -> int:
        """Code of infinity, or of what follows the largest number."""
        exponents = (1 << self.bits - 1 - self.fraction) - 1
        return exponents << self.fraction if self.infinite else (1 << self.bits - 1) - 1

    @property
    def nan(self) -> int:
        """NVIDIA's NaN: all ones but the sign."""
        return self.sign - 1


FORMATS = {
    "f32": Format(32, 23),
    "f16": Format(16, 10),
    "bf16": Format(16, 7),
    "tf32": Format(19, 10),
    "e5m2": Format(8, 2),
    "e4m3": Format(8, 3, infinite=False),
}
Number = Fraction | str


def negative(code: int, form: Format) -> bool:
    """Say whether the sign bit is set."""
    return bool(code & form.sign)


def decode(code: int, form: Format) -> Number:
    """Return the value of a code."""
    magnitude = code & form.sign - 1
    if magnitude > form.infinity or (not form.infinite and magnitude == form.infinity):
        return "nan"
    if magnitude == form.infinity:
        return "-inf" if negative(code, form) else "inf"
    exponent, fraction = magnitude >> form.fraction, magnitude & (1 << form.fraction) - 1
    if exponent:
        fraction |= 1 << form.fraction
    value = Fraction(fraction) * Fraction(2) ** (max(exponent, 1) - form.bias - form.fraction)
    return -value if negative(code, form) else value


def floor_log2(value: Fraction) -> int:
    """Return the largest k with 2^k <= value, for a positive value."""
    k = value.numerator.bit_length() - value.denominator.bit_length()
    return k if Fraction(2) ** k <= value else k - 1


def cut(value: Fraction, mode: str) -> int:
    """Round to an integer: rn (ties to even), rna (ties away), rz, rm (down) or rp (up)."""
    below = value.numerator // value.denominator
    rest = value - below
    if mode == "rm" or rest == 0:
        return below
    if mode == "rp":
        return below + 1
    if mode == "rz":
        return below + (1 if value < 0 else 0)
    if rest != Fraction(1, 2):
        return below + (1 if rest > Fraction(1, 2) else 0)
    if mode == "rna":
        return below + (0 if value < 0 else 1)
    return below + below % 2


def encode(value: Number, form: Format, mode: str = "rn", zero_negative: bool = False, unbounded: bool = False) -> int:
    """Round to a code; an exact zero takes the given sign. `unbounded`: to any exponent, for the question of flushing.

    With `unbounded` the result is 1 where the rounded magnitude is a normal number, else 0.
    """
    if value == "nan":
        return form.nan
    if value in ("inf", "-inf"):
        return form.infinity | (form.sign if value == "-inf" else 0)
    assert isinstance(value, Fraction)
    if value == 0:
        return form.sign if zero_negative else 0
    exponent = floor_log2(abs(value))
    if not unbounded:
        exponent = max(exponent, form.least)
    step = Fraction(2) ** (exponent - form.fraction)
    count = abs(cut(value / step, mode))
    if unbounded:
        return int(count * step >= Fraction(2) ** form.least)
    sign = form.sign if value < 0 else 0
    # count is below 2^(fraction + 1), or equal to it after a carry: adding it to the exponent field does both
    code = (exponent - form.least << form.fraction) + count
    if code >= form.infinity:
        toward = {"rz": False, "rm": value < 0, "rp": value > 0}.get(mode, True)
        code = form.infinity if toward else form.infinity - 1
    return code | sign


def root(value: Fraction, form: Format, mode: str) -> int:
    """Return the code of a square root, rounded once: from an integer root with many bits and a sticky one."""
    shift = 2 * (form.bits + 400)
    scaled = (value.numerator << shift) // value.denominator
    whole = isqrt(scaled)
    exact = whole * whole == scaled and value.denominator * scaled == value.numerator << shift
    return encode(Fraction(2 * whole + (not exact), 2 << shift // 2), form, mode)
