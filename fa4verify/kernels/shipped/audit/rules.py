"""What must hold of every kernel, whatever the contract says.

Contract: each rule takes a kernel's facts and returns sentences about what is broken, or None where a fact it needs was
not found: an unsafe kernel must not pass for want of evidence. Where the numbers come from: the largest finite numbers
of the formats (`arithmetic.formats`), the coefficient sets that FA4 declares (`utils.POLY_EX2` of 4.0.0b36, compared
bit by bit with the package in tests/kernels/shipped/audit/test_rules.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fa4verify.arithmetic.formats import FORMATS
from fa4verify.kernels.shipped.audit.facts import NONE, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from fa4verify.kernels.shipped.audit.facts import Facts

CONVERTED = {"bf16x2": "bf16", "f16x2": "fp16", "e4m3x2": "e4m3", "e5m2x2": "e5m2", "bf16": "bf16", "f16": "fp16"}
DECLARED = {
    1: "3F800000 3F6C28C5",
    2: "3F800000 3F2A70E4 3EA903CA",
    3: "3F800000 3F31F519 3E6906A4 3D9DF09D",
    4: "3F800000 3F316B3F 3E77150E 3D55EA42 3C5C1E37",
    5: "3F800000 3F31725F 3E75ED73 3D6490D6 3C13B1A6 3AF4DB16",
}


def broken(facts: Facts) -> tuple[list[str], list[str]]:
    """Return what rules a forward kernel breaks, and which of them could not be checked."""
    sentences: list[str] = []
    unknown: list[str] = []
    for name, rule in RULES.items():
        said = rule(facts)
        if said is None:
            unknown.append(name)
        else:
            sentences += said
    return sentences, unknown


def _values(facts: Facts, name: str) -> list[str] | None:
    fact = facts.get(name)
    return None if fact is None or fact.value is None else fact.value.split("; ")


def p_overflows(facts: Facts) -> list[str] | None:
    """Check that P, which reaches 2^(tau + offset), stays below the largest finite number of its dtype."""
    conversions, taus, offsets = (_values(facts, name) for name in ("p_conversion", "tau", "offset"))
    if conversions is None or taus is None or offsets is None:
        return None
    said = []
    for conversion in conversions:
        dtype = next((CONVERTED[part] for part in conversion.split(".") if part in CONVERTED), None)
        if dtype is None:
            return None
        largest = FORMATS[dtype].max_finite
        if any(" " in one for one in taus):  # another comparison than the one that keeps the old maximum
            return None
        reach = max(map(float, taus)) + max(map(float, offsets))
        if reach > math.log2(largest):
            said.append(
                f"P reaches 2^{reach:g} (tau {'/'.join(taus)} + offset {'/'.join(offsets)}), but {dtype} ends at "
                f"{largest:g} = 2^{math.log2(largest):.2f}: rows whose maximum rises late are clamped"
            )
    return said


def coefficients_unknown(facts: Facts) -> list[str] | None:
    """Check that every polynomial is one of the declared sets."""
    sets = _values(facts, "coefficients")
    if sets is None:
        return None
    unknown = [one for one in sets if one not in (*DECLARED.values(), NONE)]
    return [f"coefficients {one} are no declared set" for one in unknown]


def columns_missing(facts: Facts) -> list[str] | None:
    """Check that exponentials, emulated or not, are as many as the columns that the row's maximum is taken of."""
    counts, columns = _values(facts, "exponentials"), _values(facts, "columns")
    if counts is None or columns is None:
        return None
    evaluated = {one.split(" of ")[1] for one in counts}
    if evaluated == set(columns):
        return []
    return [f"{'/'.join(sorted(evaluated))} exponentials of a row's {'/'.join(columns)} columns"]


def below_one(facts: Facts) -> list[str] | None:
    """Check that 2^0 is not below 1: else exact powers of two weigh less than their neighbours."""
    sets = _values(facts, "coefficients")
    if sets is None:
        return None
    lowest = [(one, number(int(one.split()[0], 16))) for one in sets if one != NONE]
    return [f"p0 = {value!r} < 1 in {one}" for one, value in lowest if value < 1.0]


def offsets_differ(facts: Facts) -> list[str] | None:
    """Check that what is added to the exponents is taken from the logarithm again."""
    added, taken = _values(facts, "offset"), _values(facts, "lse_offset")
    if added is None or taken is None:
        return None
    return [] if added == taken else [f"exponents are offset by {'/'.join(added)}, LSE by {'/'.join(taken)}"]


RULES: dict[str, Callable[[Facts], list[str] | None]] = {
    "P does not overflow": p_overflows,
    "coefficients are declared": coefficients_unknown,
    "every column has an exponential": columns_missing,
    "p0 is not below 1": below_one,
    "the offset cancels in LSE": offsets_differ,
}
