"""A coefficient set of the software exponential, and every way in which a user may write one.

Contract: p0 ... pd are exact float32 numbers, constant first, d at most 7. A decimal is rounded to the nearest float32,
once (never through float64), as a C compiler does; a hexadecimal float that float32 does not hold is an error, since
whoever writes hex means those bits. What cannot be read is a SetError of one line that says where.
Fails first where a shell eats the list: quote it.

Forms: `fa4:3` or `degree3` (the set that FA4 ships), `fit:3:one:floor:rms` (a fit that this package ships, `library`),
`1,0.695,0.2276,0.0771` (decimal or C hex float, a trailing f is allowed), a path that ends in .toml or .json, or JSON
itself: a list of numbers, or an object with `coefficients` and, as in the files, `name`, `range` ("floor" or "nearest")
and `provenance`.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2.errors import SetError as SetError

RangeReduction = Literal["floor", "nearest"]
MAX_DEGREE = 7
_SHIPPED = re.compile(r"(?:fa4:|degree)(\d+)")
_HEX = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?\d{1,5}f?", re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,4})?f?", re.IGNORECASE)
_LONGEST = 200  # characters of one number; the longest exact decimal of a float32 has 112 significant digits


@dataclass(frozen=True)
class CoefficientSet:
    """Coefficients p0 ... pd of 2^f on the reduced range, and how x is reduced.

    Parameters
    ----------
    name
        How reports call it.
    coefficients
        One to eight numbers that float32 holds exactly, constant first.
    range_reduction
        "floor" (FA4: add.rm with the magic number, f in [0, 1]) or "nearest" (add.rn, f in [-1/2, 1/2]).
    provenance
        Where the numbers come from.
    """

    name: str
    coefficients: tuple[float, ...]
    range_reduction: RangeReduction = "floor"
    provenance: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.coefficients) <= MAX_DEGREE + 1:
            raise SetError(f"{self.name}: {len(self.coefficients)} coefficients; expected 1 to {MAX_DEGREE + 1}")
        if self.range_reduction not in get_args(RangeReduction):
            raise SetError(f"{self.name}: range {self.range_reduction!r}; expected 'floor' or 'nearest'")
        for k, value in enumerate(self.coefficients):
            with np.errstate(over="ignore", under="ignore"):
                held = np.isfinite(value) and float(np.float32(value)) == value
            if not held:
                raise SetError(f"{self.name}: p{k} = {value!r} is not a float32 number")

    @property
    def degree(self) -> int:
        """Degree of the polynomial, which is its number of FMAs."""
        return len(self.coefficients) - 1

    @property
    def float32(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """The coefficients as a float32 array, constant first."""
        return np.array(self.coefficients, np.float32)

    @property
    def hex(self) -> tuple[str, ...]:
        """The coefficients as C hex floats."""
        return tuple(hex_float(value) for value in self.coefficients)


def hex_float(value: float) -> str:
    """Show a float32 as a C hex float of at most six digits: 0x1.63ea32p-1."""
    sign, mantissa, exponent = re.fullmatch(r"(-?)0x(.*)p(.*)", float(value).hex()).groups()  # type: ignore[union-attr]
    return f"{sign}0x{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}"


def shipped(degree: int) -> CoefficientSet:
    """Return FA4's own set of a degree; SetError if it ships none."""
    if degree not in POLY_EX2:
        raise SetError(f"FA4 ships degrees {min(POLY_EX2)} to {max(POLY_EX2)}, not {degree}")
    return CoefficientSet(f"fa4:{degree}", POLY_EX2[degree], "floor", "flash_attn.cute.utils.POLY_EX2")


def parse(text: str, range_reduction: RangeReduction | None = None) -> CoefficientSet:
    """Read a set from any of the forms above; SetError says what is wrong and where.

    Parameters
    ----------
    text
        What the user wrote.
    range_reduction
        Overrides what the form says; without both it is "floor".
    """
    stripped = text.strip()
    if found := _SHIPPED.fullmatch(stripped.lower()):
        made = shipped(int(found[1]))
    elif stripped.lower().startswith("fit:"):
        from fa4verify.exp2.library import named

        made = named(stripped.lower())
    elif stripped.lower().endswith((".toml", ".json")):
        made = _from_file(Path(stripped))
    elif stripped.startswith(("{", "[")):
        made = _from_mapping(_json(stripped, "the JSON given"), "the JSON given", "given")
    else:
        made = _from_list(stripped)
    if range_reduction is None or range_reduction == made.range_reduction:
        return made
    return CoefficientSet(f"{made.name}, {range_reduction}", made.coefficients, range_reduction, made.provenance)


def parse_number(text: str) -> float:
    """Return the float32 that a decimal or a C hex float means; SetError if it means none."""
    word = text.strip()
    if len(word) > _LONGEST:
        raise SetError(f"{word[:20]}... has {len(word)} characters; a number has at most {_LONGEST}")
    if _HEX.fullmatch(word):
        return _exact(word)
    if _DECIMAL.fullmatch(word):
        return nearest_float32(Fraction(Decimal(word.rstrip("fF"))), word)
    if re.fullmatch(r"0x[0-9a-f]+", word, re.IGNORECASE):
        raise SetError(f"{word} looks like bits: a hex float has an exponent, as in 0x1.63ea32p-1")
    raise SetError(f"{word!r} is not a number: expected a decimal or a C hex float such as 0x1.63ea32p-1")


def _exact(word: str) -> float:
    try:
        value = float.fromhex(word.rstrip("fF") if "p" in word.lower() else word)
    except OverflowError:
        raise SetError(f"{word} is beyond float32") from None
    mantissa, exponent = re.split("p", word.lower().rstrip("f"))
    digits = mantissa.replace("-", "").replace("+", "").removeprefix("0x")
    whole, _, fraction = digits.partition(".")
    written = Fraction(int(whole + fraction or "0", 16)) * Fraction(2) ** (int(exponent) - 4 * len(fraction))
    if Fraction(abs(value)) != written or nearest_float32(Fraction(value), word) != value:
        raise SetError(f"{word} is not a float32 number; the nearest is {hex_float(nearest_float32(written, word))}")
    return value


def nearest_float32(value: Fraction, word: str = "") -> float:
    """Round an exact number to float32, ties to even, subnormals included; SetError beyond the largest number."""
    size = abs(value)
    if size == 0:
        return 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    spacing = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(value / spacing) * spacing
    if abs(rounded) >= 2**128:
        raise SetError(f"{word or float(value)} is beyond float32")
    return float(rounded)


def _from_list(text: str) -> CoefficientSet:
    words = text.split(",")
    if len(words) == 1 and not (_HEX.fullmatch(text) or _DECIMAL.fullmatch(text)):
        raise SetError(
            f"{text!r} is no coefficient set: expected fa4:3, a list p0,p1,... in decimal or hex, JSON, or a path "
            "that ends in .toml or .json"
        )
    return CoefficientSet("given", _numbers(words, ""), provenance=text)


def _numbers(words: Any, place: str) -> tuple[float, ...]:
    """Read each number; a file's may be numbers or text."""
    if not isinstance(words, list) or not words:
        raise SetError(f"{place}coefficients: expected a list of 1 to {MAX_DEGREE + 1} numbers")
    if len(words) > MAX_DEGREE + 1:
        raise SetError(f"{place}{len(words)} coefficients; expected 1 to {MAX_DEGREE + 1}")
    values = []
    for k, word in enumerate(words):
        if isinstance(word, bool) or not isinstance(word, str | int | Decimal):
            raise SetError(f"{place}p{k}: expected a number or text, got {type(word).__name__}")
        try:
            values.append(parse_number(str(word)))
        except SetError as error:
            raise SetError(f"{place}p{k}: {error}") from None
    return tuple(values)


def _from_file(path: Path) -> CoefficientSet:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SetError(f"{path}: cannot read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SetError(f"{path}: not UTF-8 text") from None
    if path.suffix.lower() == ".json":
        content = _json(text, str(path))
    else:
        try:
            content = tomllib.loads(text, parse_float=Decimal)
        except tomllib.TOMLDecodeError as error:
            raise SetError(f"{path}: not TOML: {error}") from None
    return _from_mapping(content, str(path), path.stem)


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal)
    except (json.JSONDecodeError, RecursionError) as error:
        raise SetError(f"{place}: not JSON: {error}") from None


def _from_mapping(content: Any, place: str, name: str) -> CoefficientSet:
    if isinstance(content, list):
        content = {"coefficients": content}
    if not isinstance(content, dict):
        raise SetError(f"{place}: expected an object or a list, got {type(content).__name__}")
    if "coefficients" not in content:
        raise SetError(f"{place}: no key 'coefficients'")
    for key in ("name", "range", "provenance"):
        if not isinstance(content.get(key, ""), str):
            raise SetError(f"{place}: {key}: expected text, got {type(content[key]).__name__}")
    reduction = content.get("range", "floor")
    if reduction not in get_args(RangeReduction):
        raise SetError(f"{place}: range {reduction!r}; expected 'floor' or 'nearest'")
    values = _numbers(content["coefficients"], f"{place}: ")
    return CoefficientSet(content.get("name", name), values, reduction, content.get("provenance", place))
