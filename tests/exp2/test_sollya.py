"""Sollya as a peer: FA4's rows come out of it digit for digit, and it agrees with our exchange and certificate."""

import re

import pytest

from fa4verify.arithmetic.exp2 import POLY_EX2
from fa4verify.exp2 import sollya
from fa4verify.exp2.certify import certify
from fa4verify.exp2.fit import fit
from fa4verify.exp2.merit import merit
from fa4verify.exp2.remez import Shape, minimax

needed = pytest.mark.skipif(not sollya.available(), reason="no program called sollya (Debian: apt-get install sollya)")


@needed
@pytest.mark.parametrize("degree", range(1, 6))
def test_fa4s_rows_come_out_digit_for_digit(degree):
    assert sollya.fpminimax(degree, "one-bit").coefficients == POLY_EX2[degree]


@needed
@pytest.mark.parametrize("degree", [2, 3, 5])
def test_its_remez_finds_our_optimum(degree):
    printed = sollya.run(f"p = remez(1, {degree}, [0;1], 2^(-x));\nprint(dirtyinfnorm(p*2^(-x) - 1, [0;1]));")
    (word,) = re.findall(r"^0x[0-9a-f.]+p[+-]?\d+$", printed, re.MULTILINE)
    mantissa, exponent = word[2:].split("p")
    whole, _, fraction = mantissa.partition(".")
    value = int(whole + fraction, 16) * 2.0 ** (int(exponent) - 4 * len(fraction))
    assert value == pytest.approx(float(minimax(Shape(degree, "free")).error), rel=1e-5)


@needed
def test_a_fixed_constant_is_not_what_fa4_got_and_is_better():
    """The constant rounded afterwards costs 2.3 % of the largest error at degree 3."""
    fixed = sollya.fpminimax(3, "fixed").coefficients
    assert fixed[0] == 1.0
    assert certify(fixed).upper / certify(POLY_EX2[3]).upper == pytest.approx(0.977, abs=1e-3)


@needed
@pytest.mark.parametrize(("constant", "way"), [("one", "fixed"), ("free", "free")])
def test_fits_beat_it_in_bf16_and_lose_in_nothing(constant, way):
    """Degree 5, where rounding decides; benchmarks/exp2_peers.md has every degree and objective."""
    theirs = merit(sollya.fpminimax(5, way).coefficients)
    for name in ("bf16", "max"):
        ours = fit(Shape(5, constant), (name,), candidates=30_000)[0].merit
        assert ours.objective(name) < theirs.objective(name)


def test_without_the_program_it_says_so(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert not sollya.available()
    with pytest.raises(sollya.MissingError, match="apt-get install sollya"):
        sollya.fpminimax(3)
