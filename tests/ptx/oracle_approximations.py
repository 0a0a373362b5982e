"""Instructions for which the ISA bounds an error: what a result may be, from mpmath and the ISA's tables.

Contract: `allowed(opcode, code)` returns the exact codes that a special operand must give, or the true value and the
largest distance from it. The bits themselves are held to an H200's by test_opcodes_h200.py and tests/arithmetic.
Bounds: PTX ISA 8.8, "ex2" (2 ulp over the full range; 2^-22.5 relative at most, loosened here to 2^-22), "lg2"
(2^-22 absolute inside (0.5, 2), 2^-22 relative outside, 2^-22.6 and so in newer texts), "rcp" (1 ulp), "tanh" (2^-11).
"""

from __future__ import annotations

from fractions import Fraction

import mpmath

from .oracle_floats import F32, flush
from .oracle_numbers import Number, decode, negative

SPECIAL = {  # operand: result; the others by symmetry of the function
    "ex2": {"inf": 0x7F800000, "-inf": 0, "0": 0x3F800000, "-0": 0x3F800000},
    "rcp": {"inf": 0, "-inf": 0x80000000, "0": 0x7F800000, "-0": 0xFF800000},
    "lg2": {"inf": 0x7F800000, "0": 0xFF800000, "-0": 0xFF800000},
    "tanh": {"inf": 0x3F800000, "-inf": 0xBF800000, "0": 0, "-0": 0x80000000},
}


def _ulp(value: Fraction) -> Fraction:
    exponent = max(int(mpmath.floor(mpmath.log(abs(mpmath.mpf(value.numerator) / value.denominator), 2))), -126)
    return Fraction(2) ** (exponent - 23)


def allowed(opcode: str, code: int) -> tuple[int, None] | tuple[Fraction, Fraction]:
    """Return (code, None) for an operand with one right result, else (true value, largest error)."""
    function, *words = opcode.split(".")
    ftz = "ftz" in words
    code = flush(code, F32) if ftz else code
    value: Number = decode(code, F32)
    if value == "nan" or (function == "lg2" and (value == "-inf" or (isinstance(value, Fraction) and value < 0))):
        return F32.nan, None
    name = value if isinstance(value, str) else ("-0" if negative(code, F32) else "0") if value == 0 else ""
    if name:
        return SPECIAL[function][name], None
    assert isinstance(value, Fraction)
    with mpmath.workprec(200):
        x = mpmath.mpf(value.numerator) / value.denominator
        if function == "ex2" and (x >= 128 or x < -160):
            return (0x7F800000 if x >= 128 else 0), None
        y = {"ex2": lambda: mpmath.power(2, x), "rcp": lambda: 1 / x, "lg2": lambda: mpmath.log(x, 2),
             "tanh": lambda: mpmath.tanh(x)}[function]()  # fmt: skip
        sign, mantissa, exponent, _ = y._mpf_
    true = Fraction(mantissa) * Fraction(2) ** exponent * (-1 if sign else 1)
    return true, _bound(function, value, true, ftz)


def _bound(function: str, operand: Fraction, true: Fraction, ftz: bool) -> Fraction:
    smallest = Fraction(2) ** -126
    if ftz and abs(true) < smallest:
        return smallest  # flushed, or rounded up to the smallest normal number
    relative = abs(true) * Fraction(1, 1 << (11 if function == "tanh" else 22))
    if function == "lg2":
        inside = Fraction(1, 2) < operand < 2
        return Fraction(1, 1 << 22) if inside else relative
    if function == "rcp":
        return _ulp(true)
    return max(relative, Fraction(2) ** -149)


def is_allowed(opcode: str, operand: int, result: int) -> bool:
    """Say whether a result is one that the ISA allows."""
    expected, bound = allowed(opcode, operand)
    if bound is None:
        return result == expected
    value = decode(result, F32)
    if value == "nan":
        return False
    if isinstance(value, str):  # rounded past the largest number
        return abs(expected) + bound >= Fraction(2) ** 128
    return abs(value - expected) <= bound
