"""Every way to write a set, and what is said when it cannot be read."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2.sets import CoefficientSet, SetError, nearest_float32, parse, parse_number

DEGREE_3 = ("0x1p+0", "0x1.63ea32p-1", "0x1.d20d48p-3", "0x1.3be13ap-4")


@pytest.mark.parametrize("text", [
    "fa4:3", "degree3", " FA4:3 ", ",".join(DEGREE_3),
    "1,0.695146143436431884765625,0.227564394474029541015625,0.077119089663028717041015625",
    "1.f, 0.69514614, 0.227564394474, 7.7119089663028717e-2F",
    json.dumps(list(DEGREE_3)), json.dumps({"coefficients": list(DEGREE_3), "name": "x"}),
    "[1, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625]",
])  # fmt: skip
def test_forms_of_the_shipped_set(text):
    assert parse(text).coefficients == POLY_EX2[3]
    assert parse(text).hex == DEGREE_3


def test_files(tmp_path):
    toml = tmp_path / "mine.toml"
    toml.write_text('range = "nearest"\nprovenance = "a search"\ncoefficients = [1, 0.1, "0x1.8p-2"]\n')
    found = parse(str(toml))
    assert found == CoefficientSet("mine", (1.0, float(np.float32(0.1)), 0.375), "nearest", "a search")
    both = tmp_path / "both.JSON"
    both.write_text('{"name": "two", "coefficients": ["1", 0.5]}')
    assert parse(str(both), "nearest") == CoefficientSet("two, nearest", (1.0, 0.5), "nearest", str(both))


def test_decimals_are_rounded_once():
    """Above the midpoint of two float32 by less than float64 can tell: through float64 it would go to the even one."""
    midpoint = Fraction(1) + Fraction(1, 2**24)
    above = midpoint + Fraction(1, 10**20)
    digits = f"{int(above * 10**30)}"
    word = f"{digits[0]}.{digits[1:]}"
    assert float(np.float32(float(word))) == 1.0
    assert parse_number(word) == 1 + 2.0**-23
    assert nearest_float32(midpoint) == 1.0
    assert nearest_float32(Fraction(1, 2**149)) == 2.0**-149
    assert nearest_float32(Fraction(3, 2**150)) == 2.0**-148
    assert nearest_float32(Fraction(2**128 - 2**103) - 1) == float(np.finfo(np.float32).max)


def test_random_numbers_come_back_from_decimal_and_hex():
    generator = np.random.Generator(np.random.Philox(key=5))
    values = generator.integers(0, 0x7F800000, 500, dtype=np.uint32).view(np.float32)
    for value in values.tolist():
        chosen = CoefficientSet("x", (value, -value))
        assert parse(",".join(chosen.hex)).coefficients == (value, -value)
        assert parse(f"{value:.9g},{-value!r}").coefficients == (value, -value)


MISTAKES = {
    "": "no coefficient set", "abc": "no coefficient set", "fa4:9": "FA4 ships degrees 0 to 5, not 9",
    "degree77": "ships degrees", "1,,2": "p1: '' is not a number", "1,": "p1: '' is not a number",
    "1,0x3F317218": "looks like bits", "1,0x1.00000001p0": "p1: .* is not a float32 number; the nearest is 0x1p\\+0",
    "1,1e39": "p1: 1e39 is beyond float32", "0x1p128,1": "beyond float32", "1,0x1p-150": "the nearest is 0x0p\\+0",
    "1,0x1p9999": "beyond float32", "1,0x1p99999999": "not a number", "1,1e99999": "not a number",
    "1,nan": "p1: 'nan' is not a number", "inf,1": "p0: 'inf' is not a number", "1;2": "no coefficient set",
    "1," + "9" * 300: "has 300 characters", "1,2,3,4,5,6,7,8,9": "9 coefficients; expected 1 to 8",
    "[": "the JSON given: not JSON", "[]": "expected a list of 1 to 8 numbers", "{}": "no key 'coefficients'",
    '{"coefficients": 1}': "expected a list", "[true]": "p0: expected a number or text, got bool",
    "[[1]]": "p0: expected a number or text, got list", "[NaN]": "p0: expected a number or text, got float",
    '{"coefficients": [1], "range": "up"}': "range 'up'; expected 'floor' or 'nearest'",
    '{"coefficients": [1], "range": 3}': "range: expected text, got int",
    '{"coefficients": [1], "name": []}': "name: expected text, got list",
    "nowhere.toml": "nowhere.toml: cannot read: No such file", "nowhere.json": "nowhere.json: cannot read",
    "[" * 100000: "not JSON",
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:20])
def test_mistakes_are_one_line(text):
    with pytest.raises(SetError, match=MISTAKES[text]) as raised:
        parse(text)
    assert "\n" not in str(raised.value)


BAD_FILES = {
    "a.toml": (b"coefficients = [", "not TOML"), "b.toml": (b"x = 1", "no key 'coefficients'"),
    "c.toml": (b"coefficients = [1, inf]", "p1: 'Infinity' is not a number"),
    "d.toml": (b"\xff\xfe", "not UTF-8"), "e.json": (b"3", "expected an object or a list, got int"),
    "f.toml": (b"coefficients = [1, 2020-01-01]", "p1: expected a number or text, got date"),
    "g.json": (b'{"coefficients": [1, "x"]}', "g.json: p1: 'x' is not a number"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_mistakes_in_files(tmp_path, name):
    content, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SetError, match=message):
        parse(str(tmp_path / name))


@pytest.mark.parametrize(("coefficients", "reduction"), [
    ((), "floor"), ((1.0,) * 9, "floor"), ((0.1,), "floor"), ((float("nan"),), "floor"), ((1.0,), "ceil"),
    ((1e39,), "floor"),
])  # fmt: skip
def test_sets_that_cannot_be(coefficients, reduction):
    with pytest.raises(SetError):
        CoefficientSet("x", coefficients, reduction)
