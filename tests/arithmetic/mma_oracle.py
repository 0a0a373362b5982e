"""The tensor-core step in Python integers: the tests' second opinion, written from the published rule alone.

A number is m * 2^q with integers m and q; nothing is ever rounded but where the rule says so. The keywords of `Rule`
are the ways to get it wrong that the tests must notice.
"""

import math
from dataclasses import dataclass

EMIN = {"bf16": -126, "fp16": -14, "e4m3": -6, "e5m2": -14}


@dataclass(frozen=True)
class Rule:
    """Integers of one step and, for mutants, what is wrong with it."""

    k_step: int
    fraction_bits: int
    floor: int
    output_bits: int
    emin: int
    nearest_terms: bool = False  # terms rounded to nearest at the cut
    nearest_result: bool = False  # result rounded to nearest even
    normalised_products: bool = False  # a product in [2, 4) counts with the next exponent
    normalised_subnormals: bool = False  # a subnormal operand counts with the exponent of its leading bit
    c_apart: bool = False  # c added after the products were summed and rounded
    floor_down_terms: bool = False  # terms cut toward minus infinity
    signed_zero: bool = False  # a sum of negative zeros keeps its sign


def split(x: float) -> tuple[int, int]:
    """Split x into (m, q) with x = m * 2^q."""
    numerator, denominator = x.as_integer_ratio()
    return numerator, -(denominator.bit_length() - 1)


def leading(m: int, q: int) -> int:
    return abs(m).bit_length() - 1 + q


def shifted(m: int, by: int, rule: Rule) -> int:
    """Return m * 2^by as an integer, cut toward zero."""
    if by >= 0:
        return m << by
    if rule.floor_down_terms:
        return m >> -by
    if rule.nearest_terms:
        m += (1 << (-by - 1)) if m > 0 else -(1 << (-by - 1))
    return (abs(m) >> -by) * (1 if m > 0 else -1)


def fp32(m: int, q: int, rule: Rule) -> float:
    """Round m * 2^q toward zero with `output_bits` fraction bits; from 2^128 on infinite."""
    if m == 0:
        return 0.0
    last = max(leading(m, q), -126) - rule.output_bits
    drop = last - q
    magnitude = abs(m)
    if drop <= 0:
        kept = magnitude << -drop
    else:
        kept = magnitude >> drop
        if rule.nearest_result:
            rest, half = magnitude & ((1 << drop) - 1), 1 << (drop - 1)
            kept += rest > half or (rest == half and kept & 1)
    sign = 1.0 if m > 0 else -1.0
    if kept.bit_length() - 1 + last >= 128:
        return sign * math.inf
    return sign * math.ldexp(kept, last) if kept else 0.0


def special(a: list[float], b: list[float], c: float) -> float | None:
    """Return the result if an operand is not finite, else None."""
    infinities = set()
    for x, y in [*zip(a, b, strict=True), (c, 1.0)]:
        if math.isnan(x) or math.isnan(y):
            return math.nan
        if math.isinf(x) or math.isinf(y):
            if x == 0 or y == 0:
                return math.nan
            infinities.add(math.copysign(1.0, x) * math.copysign(1.0, y))
    if len(infinities) == 2:
        return math.nan
    return infinities.pop() * math.inf if infinities else None


def step(a: list[float], b: list[float], c: float, rule: Rule) -> float:
    found = special(a, b, c)
    if found is not None:
        return found
    terms = []  # m, q, exponent
    for x, y in zip(a, b, strict=True):
        (mx, qx), (my, qy) = split(x), split(y)
        if mx and my:
            ex, ey = leading(mx, qx), leading(my, qy)
            if not rule.normalised_subnormals:
                ex, ey = max(ex, rule.emin), max(ey, rule.emin)
            exponent = leading(mx * my, qx + qy) if rule.normalised_products else ex + ey
            terms.append((mx * my, qx + qy, exponent))
    if rule.c_apart:
        products = _sum(terms, rule)
        return _sum([_own(products), _own(c)], rule)
    result = _sum([*terms, _own(c)], rule)
    if rule.signed_zero and result == 0 and all(math.copysign(1.0, x) < 0 for x in (c, *a)):
        return -0.0
    return result


def _own(x: float) -> tuple[int, int, int]:
    m, q = split(x)
    return m, q, max(leading(m, q), -126)


def _sum(terms: list[tuple[int, int, int]], rule: Rule) -> float:
    terms = [term for term in terms if term[0]]
    largest = max([rule.floor, *(exponent for _, _, exponent in terms)])
    unit = largest - rule.fraction_bits
    return fp32(sum(shifted(m, q - unit, rule) for m, q, _ in terms), unit, rule)


def chain(a: list[float], b: list[float], c: float, rule: Rule) -> float:
    """Chain the steps along K, ascending."""
    for k in range(0, len(a), rule.k_step):
        c = step(a[k : k + rule.k_step], b[k : k + rule.k_step], c, rule)
    return c
