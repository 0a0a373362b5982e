"""Numbers keep three digits and are never rounded to something they are not; foreign text is tame."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa4verify.reports.text import digits, one_line, percent, printable, seconds


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (-0.0, "0"),
        (3.937e-5, "3.94e-5"),
        (5e-324, "4.94e-324"),
        (0.001, "0.00100"),
        (0.0009996, "1.00e-3"),
        (0.5, "0.500"),
        (1.0049, "1.00"),
        (12.34, "12.3"),
        (413.4, "413"),
        (999.4, "999"),
        (999.6, "1.00e+3"),
        (1429.0, "1429"),
        (650142.0, "6.50e+5"),
        (-2.5, "-2.50"),
        (1.7976931348623157e308, "1.80e+308"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_digits(value: float | None, shown: str) -> None:
    assert digits(value) == shown


@given(st.floats(-1.79e308, 1.79e308))
def test_digits_are_right_to_three_places_and_short(value: float) -> None:
    shown = digits(value)
    assert len(shown.lstrip("-")) <= 9
    # Half a unit in the third digit is 0.5 % of a mantissa of 1; the decimal itself is read back within an ulp.
    assert abs(float(shown) - value) <= 0.00500001 * abs(value) + 5e-324


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (None, "-"),
        (0.0, "0%"),
        (1.0, "100%"),
        (0.00997, "0.997%"),
        (0.9999, "<100%"),
        (1e-9, "1e-07%"),
        (0.984, "98.4%"),
    ],
)
def test_percent_reads_as_all_or_nothing_only_where_it_is(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_no_control_character_survives() -> None:
    assert printable("\x1b[2J\x00\x9b\u202e\ud800 数值 ok\n") == "\\x1b[2J\\x00\\x9b\\u202e\\ud800 数值 ok\n"
    assert one_line("a\n  b\tc\u2028d") == "a b c d"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.4213, "0.421 s"), (12.3, "12.3 s"), (59.99, "60 s"), (245.0, "4 min 05 s")]
)
def test_seconds(value: float, shown: str) -> None:
    assert seconds(value) == shown
